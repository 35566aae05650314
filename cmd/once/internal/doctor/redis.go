package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// redisInfo is INFO of one server.
type redisInfo struct {
	server string // its address
	fields map[string]string
}

// number returns a field that is a number, and 0 if it is not there.
func (i redisInfo) number(name string) float64 {
	n, _ := strconv.ParseFloat(i.fields[name], 64)
	return n
}

// redisServers returns INFO of the servers that take writes.
func redisServers(ctx context.Context, client redis.UniversalClient) (all []redisInfo, err error) {
	var mu sync.Mutex
	look := func(ctx context.Context, c *redis.Client) error {
		text, err := c.Info(ctx, "everything").Result()
		if err != nil {
			return err
		}
		info := redisInfo{server: c.Options().Addr, fields: make(map[string]string)}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info.fields[name] = value
			}
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, info)
		return nil
	}
	switch c := client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, look)
	case *redis.Client:
		err = look(ctx, c)
	default:
		err = fmt.Errorf("INFO of a %T is not read", client)
	}
	return all, err
}

const fullMemory = 0.9

func redisServer(ctx context.Context, e *examination) error {
	servers, err := redisServers(ctx, e.Redis)
	if err != nil {
		return err
	}
	for _, s := range servers {
		if policy := s.fields["maxmemory_policy"]; policy != "noeviction" {
			e.found("eviction", Unsafe, fmt.Sprintf("maxmemory-policy of %s is %q.", s.server, policy),
				"When memory is full, the server may drop a key, and its work runs again. The store refuses to work on it.",
				"Set maxmemory-policy noeviction, or use another server than the one of your cache.")
		}
		if s.fields["role"] != "master" {
			e.found("replica", Unsafe, s.server+" is a replica.", "Writes fail, or are lost if it accepts them.",
				"Give the URL of the primary, or of Sentinel with master_name.")
		}
		if limit := s.number("maxmemory"); limit > 0 && s.number("used_memory") > fullMemory*limit {
			e.found("memory", Warning, fmt.Sprintf("%s uses %.0f %% of its maxmemory.", s.server, 100*s.number("used_memory")/limit),
				"When memory is full, claims fail. Work that has begun is still recorded.",
				"Raise maxmemory, or keep outcomes and keys for a shorter time (Policy.KeepOutcome, Policy.KeepKey).")
		}
		if s.number("rejected_connections") > 0 {
			e.found("connections", Note, fmt.Sprintf("%s has rejected %s connections since its start.", s.server, s.fields["rejected_connections"]),
				"Programs have more connections than maxclients allows.", "Raise maxclients, or make the pools of the programs smaller.")
		}
	}
	return nil
}

func redisDurability(ctx context.Context, e *examination) error {
	servers, err := redisServers(ctx, e.Redis)
	if err != nil {
		return err
	}
	const rerun = "Work whose key is lost runs again."
	for _, s := range servers {
		switch {
		case s.fields["aof_enabled"] == "0":
			e.found("append-only", Unsafe, "appendonly of "+s.server+" is no.",
				"A crash of the server loses everything since the last snapshot. "+rerun, "Set appendonly yes and appendfsync always.")
		case s.fields["aof_last_write_status"] != "" && s.fields["aof_last_write_status"] != "ok":
			e.found("append-only-fails", Unsafe, s.server+" could not write its append-only file.",
				"What is acknowledged may not be on disk.", "Look into the log of the server: its disk may be full.")
		}
		if replicas := s.number("connected_slaves"); replicas > 0 {
			e.found("failover-loses-writes", Warning, fmt.Sprintf("%s has replicas (%.0f), to which it writes asynchronously.", s.server, replicas),
				"A failover loses the writes that the new primary had not received. "+rerun,
				"See docs/stores/redis.md for what each setting can lose.")
		}
	}
	fsync, err := redisSetting(ctx, e.Redis, "appendfsync")
	if err == nil && fsync != "always" && len(servers) > 0 && servers[0].fields["aof_enabled"] != "0" {
		e.found("fsync", Warning, "appendfsync is "+fsync+".",
			"A crash of the machine loses the last second or two, or more. "+rerun, "Set appendfsync always, if that must not happen.")
	}
	return err
}

// redisSetting reads a setting of one server.
func redisSetting(ctx context.Context, client redis.UniversalClient, name string) (string, error) {
	all, err := client.ConfigGet(ctx, name).Result()
	return all[name], err
}
