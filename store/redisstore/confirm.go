package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/redis/go-redis/v9"
)

// confirmation is what a call waits for after its script.
type confirmation struct {
	replicas int
	synced   bool
	timeout  time.Duration
}

// check returns what is wrong with it for a client.
func (c confirmation) check(client redis.UniversalClient) error {
	var limit time.Duration // of a read; 0: there is none
	switch client := client.(type) {
	case *redis.Client:
		limit = client.Options().ReadTimeout
	case *redis.ClusterClient:
		limit = client.Options().ReadTimeout
	}
	switch {
	case !c.needed():
		return nil
	case c.replicas < 0 || c.timeout < time.Millisecond:
		return fmt.Errorf("%w: redisstore: Replicas is %d and ConfirmTimeout %v: give at least 0 and a millisecond",
			once.ErrInvalid, c.replicas, c.timeout)
	case limit > 0 && c.timeout >= limit:
		return fmt.Errorf("%w: redisstore: ConfirmTimeout is %v, and the client gives up a read after %v", once.ErrInvalid, c.timeout, limit)
	}
	return nil
}

func (c confirmation) needed() bool { return c.replicas != 0 || c.synced }

// ask adds to a pipeline that the server waits, and returns a function that
// reads how it ended.
func (c confirmation) ask(ctx context.Context, p redis.Pipeliner) (result func() error) {
	if !c.synced {
		cmd := redis.NewIntCmd(ctx, "wait", c.replicas, c.timeout.Milliseconds())
		_ = p.Process(ctx, cmd) // only queues it
		return func() error { return c.enough(cmd.Val(), cmd.Err()) }
	}
	cmd := redis.NewIntSliceCmd(ctx, "waitaof", 1, c.replicas, c.timeout.Milliseconds())
	_ = p.Process(ctx, cmd)
	return func() error {
		n := cmd.Val()
		switch {
		case cmd.Err() != nil || len(n) != 2:
			return c.enough(0, cmd.Err())
		case n[0] < 1:
			return fmt.Errorf("the server did not sync its append-only file within %v", c.timeout)
		}
		return c.enough(n[1], nil)
	}
}

func (c confirmation) enough(n int64, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("wait for %d replicas: %w", c.replicas, err)
	case n < int64(c.replicas):
		return fmt.Errorf("%d of %d replicas confirmed it within %v", n, c.replicas, c.timeout)
	}
	return nil
}

// run runs a script, in one round trip if the server knows it, and waits until
// its effect is confirmed.
func (s *Store) run(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd {
	if !s.confirm.needed() {
		return script.Run(ctx, s.client, keys, args...)
	}
	eval := func(eval func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) *redis.Cmd {
		return s.confirmed(ctx, keys[0], func(p redis.Pipeliner) *redis.Cmd { return eval(ctx, p, keys, args...) })
	}
	cmd := eval(script.EvalSha)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = eval(script.Eval)
	}
	return cmd
}

// errUnconfirmed means that a script was run, and its effect is not confirmed.
var errUnconfirmed = errors.New("redisstore: the call may be lost")

// confirmed runs a command of a key, and waits until its effect is confirmed.
func (s *Store) confirmed(ctx context.Context, key string, add func(redis.Pipeliner) *redis.Cmd) (cmd *redis.Cmd) {
	node, err := s.node(ctx, key)
	if err != nil {
		cmd = redis.NewCmd(ctx)
		cmd.SetErr(err)
		return cmd
	}
	var result func() error
	_, _ = node.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its error
		cmd, result = add(p), s.confirm.ask(ctx, p)
		return nil
	})
	if cmd.Err() == nil {
		if err := result(); err != nil {
			cmd.SetErr(fmt.Errorf("%w: %w", errUnconfirmed, err))
		}
	} else if cluster, ok := s.client.(*redis.ClusterClient); ok {
		cluster.ReloadState(ctx) // the slot may have moved
	}
	return cmd
}

// node returns a client of the one server that has a key: WAIT has no key, so a
// cluster client would send it anywhere.
func (s *Store) node(ctx context.Context, key string) (redis.UniversalClient, error) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return s.client, nil
}
