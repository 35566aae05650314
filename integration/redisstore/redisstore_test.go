//go:build linux

// Package redisstore tests the store in Redis on servers that are killed, that
// are replicas, and that form a cluster.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/killproof"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // connections are lost on purpose
	if os.Getenv(relayVar) != "" {
		os.Exit(relay())
	}
	if os.Getenv(workerVar) != "" {
		os.Exit(work())
	}
	killproof.Main(m, openPlace)
}

func start(t *testing.T) *server.Instance {
	t.Helper()
	server.Need(t, server.Redis)
	s, err := server.StartRedis(t.Context())
	proof.Must(t, err)
	t.Cleanup(func() { proof.Must(t, s.Stop()) })
	return s
}

func dial(t *testing.T, s *server.Instance) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(s.DSN())
	proof.Must(t, err)
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ledger is another system that does each unit of work as often as it is asked,
// and can be asked whether it has.
type ledger struct {
	mu   sync.Mutex
	done map[string]int
}

func (l *ledger) do(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[id]++
}

func (l *ledger) lookUp(_ context.Context, k once.Key) (string, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return "paid " + k.ID, l.done[k.ID] > 0, nil
}

// A server that syncs each write, as the tests start it, loses nothing when it
// is killed.
func TestAKilledServerLosesNothing(t *testing.T) {
	const ids, callers = 60, 3
	s := start(t)
	l := &ledger{done: make(map[string]int)}
	pay := &once.Operation[string]{Name: "pay", Lookup: l.lookUp, Policy: once.Policy{Lease: 5 * time.Second}}
	stores := make([]*redisstore.Store, callers)
	for i := range stores {
		stores[i] = redisstore.New(dial(t, s), &redisstore.Options{Options: once.Options{Logger: proof.Logger(t)}})
	}
	call := func(store *redisstore.Store, i int) {
		id, ctx := fmt.Sprint(i), proof.Soon(t)
		got, err := "", context.Canceled
		for err != nil && ctx.Err() == nil {
			got, err = once.Do(ctx, store, pay.For(id), func(ctx context.Context, _ once.Key) (string, error) {
				if err := ctx.Err(); err != nil {
					return "", once.NotDone(err)
				}
				if l.do(id); i%15 == 7 { // the claim is confirmed, and the end is not
					if err := errors.Join(s.Kill(), s.Restart(ctx)); err != nil {
						t.Error(err)
					}
				}
				return "paid " + id, nil
			})
		}
		if err != nil || got != "paid "+id {
			t.Errorf("the answer of %s is %q, %v", id, got, err)
		}
	}
	var calling sync.WaitGroup
	for _, store := range stores {
		calling.Go(func() {
			for i := range ids {
				call(store, i)
			}
		})
	}
	calling.Wait()
	for i := range ids {
		if n := l.done[fmt.Sprint(i)]; n != 1 {
			t.Errorf("%d was paid %d times", i, n)
		}
	}
}

// A replica may not know what its primary has confirmed.
func TestAReplicaIsNotAsked(t *testing.T) {
	primary, replica := start(t), start(t)
	key := once.Key{Operation: "pay", ID: "1"}
	c, ctx := dial(t, replica), proof.Soon(t)
	store, pay := redisstore.New(c, nil), &once.Operation[string]{Name: "pay", OnUnknown: once.Park}
	do := func(s *redisstore.Store, id string) {
		t.Helper()
		_, err := once.Do(ctx, s, pay.For(id), func(context.Context, once.Key) (string, error) { return "paid", nil })
		proof.Must(t, err)
	}
	for range 40 { // until it looks for duplicates without a script
		do(store, "before")
	}
	o, err := redis.ParseURL(primary.DSN())
	proof.Must(t, err)
	host, port, _ := strings.Cut(o.Addr, ":")
	proof.Must(t, c.ConfigSet(ctx, "masterauth", o.Password).Err())
	proof.Must(t, c.Do(ctx, "REPLICAOF", host, port).Err())
	proof.Await(t, "the replica follows", func() bool {
		info, err := c.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	if page, err := store.List(ctx, once.RecordQuery{Status: []once.Status{once.Running}}); err == nil {
		t.Errorf("List on a replica returned %v", page)
	}
	isRefused := func(key once.Key) {
		t.Helper()
		fence := once.Fence{Key: key, Attempt: 1}
		if rec, err := store.Get(ctx, key); err == nil {
			t.Errorf("Get on a replica returned %v", rec)
		}
		if rec, err := store.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: time.Second}); err == nil {
			t.Errorf("Claim on a replica returned %v", rec)
		}
		for call, err := range map[string]error{
			"Extend": store.Extend(ctx, fence, time.Second),
			"Settle": store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}),
			"Reopen": store.Reopen(ctx, fence, time.Hour, ""),
		} {
			if err == nil || errors.Is(err, once.ErrLeaseLost) {
				t.Errorf("%s on a replica returned %v", call, err)
			}
		}
	}
	isRefused(key)
	do(redisstore.New(dial(t, primary), nil), "2")
	key.ID = "2"
	proof.Await(t, "the replica has the key", func() bool { return c.DBSize(ctx).Val() > 0 })
	isRefused(key)
	proof.Await(t, "the replica has written its first file, without which it does not stop", func() bool {
		info, err := c.Info(ctx, "persistence").Result()
		return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	})
}
