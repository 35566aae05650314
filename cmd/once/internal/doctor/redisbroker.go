package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// redisView is the examined part of Redis with streams.
type redisView struct {
	client  redis.UniversalClient
	streams []string // the examined ones
	listed  bool
}

func dialRedis(ctx context.Context, a address) (*Broker, error) {
	client, err := redisOf(a)
	if err != nil {
		return nil, err
	}
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	v := &redisView{client: client}
	return &Broker{name: a.String(), kind: "redis", close: func() { _ = client.Close() }, checks: []brokerCheck{
		{"redis-server", v.server}, {"redis-fsync", v.fsync}, {"redis-streams", v.look}, {"redis-groups", v.groups},
		{"redis-sources", v.sources},
	}}, nil
}

// redisOf returns a client of an address. It connects on first use.
func redisOf(a address) (redis.UniversalClient, error) {
	u := url.URL{Scheme: a.scheme, Host: a.hosts[0], Path: a.path}
	if a.signed {
		u.User = url.UserPassword(a.user, a.password)
	}
	for _, host := range a.hosts[1:] {
		a.query.Add("addr", host)
	}
	u.RawQuery = a.query.Encode()
	client, err := target.NewRedis(u.String())
	if err != nil {
		return nil, refuse("%v", strings.TrimPrefix(err.Error(), target.ErrURL.Error()+": "))
	}
	return client, nil
}

// server reads settings by which confirmed messages are lost.
func (v *redisView) server(ctx context.Context, s *survey) error {
	servers, err := redisServers(ctx, v.client)
	redisLoses(s, servers)
	return err
}

func redisLoses(s *survey, servers []redisInfo) {
	for _, is := range servers {
		if policy := is.fields["maxmemory_policy"]; strings.HasPrefix(policy, "allkeys") {
			s.found("redis-evicts", Unsafe, fmt.Sprintf("maxmemory-policy of %s is %s.", is.server, policy),
				"When memory is full, the server may drop a stream with all its messages. redisbroker refuses to work on it.",
				"Set maxmemory-policy noeviction, or use another server than the one of your cache.")
		}
		if is.fields["aof_enabled"] == "0" {
			s.found("redis-append-only", Unsafe, "appendonly of "+is.server+" is no.",
				"A crash of the server loses all messages and acknowledgements since the last snapshot.",
				"Set appendonly yes and appendfsync always.")
		}
		if limit := is.number("maxmemory"); limit > 0 && is.number("used_memory") > nearFull*limit {
			s.found("redis-memory", Warning, fmt.Sprintf("%s uses %.0f %% of its maxmemory.", is.server, 100*is.number("used_memory")/limit),
				"When memory is full, streams accept no messages, and relays hold theirs.",
				"Raise maxmemory, or trim the streams with Trim of redisbroker.")
		}
		if replicas := is.number("connected_slaves"); replicas > 0 {
			s.found("redis-failover", Warning, fmt.Sprintf("%s has replicas (%.0f), to which it writes asynchronously.", is.server, replicas),
				"A failover loses the confirmed messages that the new primary had not received. Their effects never happen.",
				"Set Options.Replicas of redisbroker where messages are published, or publish them again after a failover.")
		}
	}
}

func (v *redisView) fsync(ctx context.Context, s *survey) error {
	fsync, err := redisSetting(ctx, v.client, "appendfsync")
	if err == nil && fsync != "always" {
		s.found("redis-fsync", Warning, "appendfsync is "+fsync+".",
			"A crash of the machine loses the messages and acknowledgements of the last second or two, or more.",
			"Set appendfsync always, if that must not happen.")
	}
	return err
}

// look lists the streams that are examined.
func (v *redisView) look(ctx context.Context, s *survey) error {
	list := func(ctx context.Context, c *redis.Client) error {
		keys := c.ScanType(ctx, 0, "", 1000, "stream").Iterator()
		for keys.Next(ctx) {
			if s.wanted(keys.Val()) {
				v.streams = append(v.streams, keys.Val())
			}
		}
		return keys.Err()
	}
	var err error
	switch c := v.client.(type) {
	case *redis.ClusterClient:
		err = forEachMasterInTurn(ctx, c, list)
	case *redis.Client:
		err = list(ctx, c)
	}
	slices.Sort(v.streams)
	v.streams = slices.Compact(v.streams) // SCAN may return a key twice
	v.listed = err == nil
	return err
}

// forEachMasterInTurn calls do for one server after the other.
func forEachMasterInTurn(ctx context.Context, c *redis.ClusterClient, do func(context.Context, *redis.Client) error) error {
	turn := make(chan struct{}, 1)
	return c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		turn <- struct{}{}
		defer func() { <-turn }()
		return do(ctx, node)
	})
}

// unheardFor is how long a consumer of Redis may be silent: longer than the
// ClaimAfter of most programs.
const unheardFor = 5 * time.Minute

func (v *redisView) groups(ctx context.Context, s *survey) error {
	if !v.listed {
		return errNotListed
	}
	for _, stream := range v.streams {
		about, err := v.client.XInfoStream(ctx, stream).Result()
		if err != nil {
			return err
		}
		groups, err := v.client.XInfoGroups(ctx, stream).Result()
		if err != nil {
			return err
		}
		for _, g := range groups {
			name := "Group " + show.Line(g.Name) + " of stream " + show.Line(stream)
			consumers, err := v.client.XInfoConsumers(ctx, stream, g.Name).Result()
			if err != nil {
				return err
			}
			redisConsumers(s, name, &g, consumers)
			pending, err := v.client.XPending(ctx, stream, g.Name).Result()
			if err != nil {
				return err
			}
			redisDropped(s, name, about, &g, pending)
		}
	}
	return nil
}

// redisReturned is the consumer of redisbroker that has what was returned.
const redisReturned = "once/returned"

// redisConsumers reports entries that nobody handles.
func redisConsumers(s *survey, name string, g *redis.XInfoGroup, consumers []redis.XInfoConsumer) {
	heard := false
	for _, c := range consumers {
		if c.Name != redisReturned && c.Idle < unheardFor {
			heard = true
		}
	}
	for _, c := range consumers {
		if c.Pending == 0 || c.Idle < unheardFor || c.Name == redisReturned && heard {
			continue
		}
		s.found("redis-consumer-gone", Warning, fmt.Sprintf("%s: consumer %s has %s, and was last heard %s ago.", name, show.Line(c.Name),
			show.Count(int(c.Pending), "unacknowledged message", "unacknowledged messages"), show.Span(c.Idle)),
			"Its process has died, or its handler hangs. Sessions of redisbroker claim such messages after Options.ClaimAfter, if one of the group is running.",
			"Start a consumer of the group. Never delete a consumer that has messages: they would be lost.")
	}
	if (g.Lag > 0 || g.Pending > 0) && !heard {
		s.found("redis-nobody-reads", Warning, fmt.Sprintf("%s has messages, and no consumer was heard for %s.", name, show.Span(unheardFor)),
			"They wait, and the stream cannot be trimmed.", "Start the consumer, or destroy the group if it was retired.")
	}
}

// redisDropped reports messages that were deleted before they were acknowledged,
// as trimming with MAXLEN does.
func redisDropped(s *survey, name string, about *redis.XInfoStream, g *redis.XInfoGroup, pending *redis.XPending) {
	const (
		means = "They were deleted by trimming or by XDEL before they were handled. Their effects never happen."
		do    = "Have the producers send them again. Do not trim with MAXLEN: Trim of redisbroker deletes only what all groups have acknowledged."
	)
	first := about.FirstEntry.ID
	gone := func(id string) bool { return about.Length == 0 || redisBefore(id, first) }
	if pending.Count > 0 && gone(pending.Lower) {
		s.found("redis-pending-dropped", Unsafe, fmt.Sprintf("%s has not acknowledged message %s, which is no longer in the stream.", name, pending.Lower), means, do)
	}
	// The lag counts all messages after the last one that was delivered, and what
	// is left of them is in the stream.
	if gone(g.LastDeliveredID) && g.Lag > about.Length {
		s.found("redis-unread-dropped", Unsafe, fmt.Sprintf("%s has received messages up to %s, and of the %d after it %d are in the stream.", name,
			g.LastDeliveredID, g.Lag, about.Length), means, do)
	}
}

// redisBefore reports whether an ID of an entry is before another.
func redisBefore(a, b string) bool {
	ams, aseq := redisID(a)
	bms, bseq := redisID(b)
	return ams < bms || ams == bms && aseq < bseq
}

func redisID(id string) (ms, seq uint64) {
	first, second, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(first, 10, 64)
	seq, _ = strconv.ParseUint(second, 10, 64)
	return ms, seq
}

// sources checks that what registered consumers read exists.
func (v *redisView) sources(ctx context.Context, s *survey) error {
	if !v.listed && len(s.readers) > 0 {
		return errNotListed
	}
	for _, r := range s.readers {
		if !s.wanted(r.of[0]) {
			continue
		}
		if !slices.Contains(v.streams, r.of[0]) {
			s.missing(r, "such stream")
			continue
		}
		groups, err := v.client.XInfoGroups(ctx, r.of[0]).Result()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(groups, func(g redis.XInfoGroup) bool { return g.Name == r.as }) {
			s.missing(r, "such group of the stream")
		}
	}
	return nil
}
