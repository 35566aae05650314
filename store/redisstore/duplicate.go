package redisstore

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/effectively-once/once"
	"github.com/redis/go-redis/v9"
)

// duplicate returns the record of a key that is Done and has its outcome, by plain
// commands, which cost the server less than a script. ok is false if the script
// has to decide: Redis drops a record and an outcome on time, so what is there has
// not expired.
func (s *Store) duplicate(ctx context.Context, k once.Key) (rec once.Record, ok bool) {
	if s.confirm.needed() || s.ready(ctx) != nil {
		return rec, false
	}
	now, err := s.clock.Now(ctx)
	if err != nil {
		return rec, false
	}
	id := k.UUID()
	keys := s.keys(id)
	var fields *redis.MapStringStringCmd
	var outcome *redis.StringCmd
	_, err = s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Persist(ctx, keys[2]) // a write, so that no replica answers
		fields, outcome = p.HGetAll(ctx, keys[0]), p.Get(ctx, keys[1])
		return nil
	})
	is := fields.Val()
	if err != nil && !errors.Is(err, redis.Nil) || outcome.Err() != nil || is["status"] != strconv.Itoa(int(once.Done)) {
		return rec, false
	}
	since := func(name string) string {
		at, _ := strconv.ParseInt(is[name], 10, 64)
		return strconv.FormatInt(max(0, int64(now.Earliest)-at), 10)
	}
	until := func(name string) time.Duration {
		at, _ := strconv.ParseInt(is[name], 10, 64)
		return max(0, time.Duration(at-int64(now.Latest))*time.Microsecond)
	}
	field := func(name, otherwise string) string {
		if text := is[name]; text != "" {
			return text
		}
		return otherwise
	}
	left := min(until("keep_outcome"), until("keep_key"))
	rec, err = readRecord([]string{is["status"], field("attempt", "0"), is["owner"], "0", since("created"), is["fingerprint"], is["cause"],
		is["content_type"], field("flags", "0"), field("sum", "0"), is["reason"], field("created", "0"), field("updated", "0"),
		is["scope"], is["operation"], is["id"], outcome.Val(), strconv.FormatInt(left.Microseconds(), 10)}, id)
	return rec, err == nil && rec.Status == once.Done && left > 0
}
