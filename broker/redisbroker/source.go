package redisbroker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	openTime = 10 * time.Second // how long Open may take at most

	// sessionPrefix begins the names of sessions in a group.
	sessionPrefix = "once/"

	// returnedConsumer has the entries that were returned.
	returnedConsumer = sessionPrefix + "returned"

	// lagLimit is the highest number of entries that Lag reads to count them.
	lagLimit = 10_000
)

// source is a group of a stream.
type source struct {
	broker        *Broker
	stream, group string
}

var _ broker.Lagger = (*source)(nil)

// Name returns the names of the stream and the group.
func (c *source) Name() string { return "redis stream " + c.stream + " group " + c.group }

// Lag returns the number of entries that are pending or were not delivered. After
// deletions, and before Redis 7, it counts the latter up to 10,000. The age is by
// the clock of the server.
func (c *source) Lag(ctx context.Context) (lag broker.Lag, err error) {
	reply, err := lagOf.Run(ctx, c.broker.client, []string{c.stream}, c.group, "", lagLimit).Int64Slice()
	switch {
	case err != nil:
		return lag, c.explain(err)
	case len(reply) != 3:
		return lag, c.explain(errReply)
	}
	lag.Messages = reply[0] + reply[1]
	if lag.Messages > 0 && reply[2] > 0 {
		lag.Oldest = time.Duration(reply[2]) * time.Millisecond
	}
	return lag, nil
}

// explain adds the name of the source to an error.
func (c *source) explain(err error) error {
	if redis.HasErrorPrefix(err, "NOGROUP") || redis.HasErrorPrefix(err, "UNBLOCKED") || strings.Contains(err.Error(), "no such key") {
		return fmt.Errorf("redisbroker: %s: %w: the stream or the group does not exist. If it was deleted, its messages are lost, "+
			"and those that were not handled must be sent again. DeclareGroup creates it", c.Name(), err)
	}
	return fmt.Errorf("redisbroker: %s: %w", c.Name(), err)
}

// check returns an error if the source can never be opened.
func (c *source) check(window int) error {
	o := &c.broker.options
	switch {
	case window < 1:
		return fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	case o.ClaimAfter < shortestClaimAfter:
		return fmt.Errorf("%w: ClaimAfter is %v: give at least %v", broker.ErrInvalid, o.ClaimAfter, shortestClaimAfter)
	case o.DeadLetter == c.stream:
		return fmt.Errorf("%w: the dead letters of the stream %q would go back to it: give them another stream", broker.ErrInvalid, c.stream)
	}
	return checkNames(c.stream, c.group)
}

// Open connects and checks that the group exists. It creates nothing.
func (c *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if err := c.check(window); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	client, err := connect(c.broker.client)
	if err != nil {
		return nil, err
	}
	s := &session{
		source:    c,
		options:   c.broker.options,
		name:      sessionName(),
		client:    client,
		window:    window,
		wake:      make(chan struct{}, 1),
		room:      make(chan struct{}, 1),
		done:      make(chan struct{}),
		pumped:    make(chan struct{}),
		renewed:   make(chan struct{}),
		activated: make(chan struct{}),
		all:       make(map[entryID]*arrival),
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(c.explain(err), s.disconnect())
	}
	go s.pump()
	go s.keep(time.NewTicker(s.options.ClaimAfter / 3))
	return s, nil
}

// sessionName returns a name that no other session has. People read it in XINFO
// CONSUMERS.
func sessionName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s%s/%d/%s", sessionPrefix, host, os.Getpid(), rand.Text())
}

// start connects the reader, and reads up to which entry Redelivered is in doubt.
func (s *session) start(ctx context.Context) error {
	var err error
	if s.node, err = nodeOf(ctx, s.client, s.stream); err != nil {
		return err
	}
	s.reader = newReader(s.node)
	if err := checkEviction(ctx, s.reader.client); err != nil {
		return err
	}
	if s.reader.id, err = s.reader.client.ClientID(ctx).Result(); err != nil {
		return err
	}
	stream, err := s.reader.client.XInfoStream(ctx, s.stream).Result()
	if err != nil {
		return err
	}
	if s.doubt, err = parseEntryID(stream.LastGeneratedID); err != nil {
		return err
	}
	groups, err := s.reader.client.XInfoGroups(ctx, s.stream).Result()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(groups, func(g redis.XInfoGroup) bool { return g.Name == s.group }) {
		return errNoGroup
	}
	return s.reader.same()
}

// errNoGroup has the prefix of the server's error.
var errNoGroup = noGroup("NOGROUP the stream has no such group")

type noGroup string

func (e noGroup) Error() string { return string(e) }
func (noGroup) RedisError()     {}

// reader is a client of one server with a single connection. A server that failed
// may have forgotten deliveries, so what is known of it ends with the
// connection.
type reader struct {
	client   *redis.Client
	id       int64 // of its connection
	connects *atomic.Int64
}

var errReconnected = errors.New("the connection to the server was lost")

func newReader(node *redis.Client) *reader {
	r := &reader{connects: new(atomic.Int64)}
	o := ownOptions(node)
	o.PoolSize, o.MaxActiveConns, o.MaxIdleConns, o.ConnMaxIdleTime, o.ConnMaxLifetime = 1, 1, 1, -1, -1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // they would move the connection
	before := o.OnConnect
	o.OnConnect = func(ctx context.Context, c *redis.Conn) error {
		r.connects.Add(1)
		if before != nil {
			return before(ctx, c)
		}
		return nil
	}
	r.client = redis.NewClient(o)
	return r
}

// same returns an error unless all answers came over one connection.
func (r *reader) same() error {
	if r.connects.Load() != 1 {
		return errReconnected
	}
	return nil
}
