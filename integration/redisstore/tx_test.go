//go:build linux

package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/redis/go-redis/v9"
)

// txHarness connects the suite to stores whose transactions count in keys that
// begin with rows.
func txHarness(open func() *redisstore.Store, c redis.UniversalClient, rows string) storetest.TxHarness[*redisstore.Tx] {
	begins := open() // with the transactions that the caller ends
	return storetest.TxHarness[*redisstore.Tx]{
		Open:      func(testing.TB) once.TxStore[*redisstore.Tx] { return open() },
		ListsOpen: true, Expires: true, Batched: true, LearnsTime: true,
		Begin:    func(context.Context) (*redisstore.Tx, error) { return begins.Begin(), nil },
		Commit:   func(ctx context.Context, tx *redisstore.Tx) error { return tx.Commit(ctx) },
		Rollback: func(_ context.Context, tx *redisstore.Tx) error { tx.Rollback(); return nil },
		Effect:   func(ctx context.Context, tx *redisstore.Tx, name string) error { return tx.Incr(ctx, rows+name).Err() },
		Count: func(ctx context.Context, name string) (int, error) {
			n, err := c.Get(ctx, rows+name).Int()
			if errors.Is(err, redis.Nil) {
				err = nil
			}
			return n, err
		},
	}
}

func TestClusterTxConformance(t *testing.T) {
	addresses := startCluster(t)
	dial := func() *redis.ClusterClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	open := func() *redisstore.Store { return redisstore.New(dial(), &redisstore.Options{Slot: "shop"}) }
	c := dial()
	storetest.RunTx(t, txHarness(open, c, "{shop}row:"))
	s := open()
	write := func(s *redisstore.Store, row string) error {
		_, err := once.DoTx(proof.Soon(t), s, parking.For(row), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
			return "", tx.Incr(ctx, row).Err()
		})
		return err
	}
	if err := write(redisstore.New(c, nil), "{shop}x"); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("without a slot, DoTx returned %v", err)
	}
	if err := write(s, "elsewhere"); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("with a command for another slot, DoTx returned %v", err)
	}
}

// A script that has begun to write goes on where memory is full, so the first
// write has to be one that is refused there.
func TestAFullServerRefusesTransactions(t *testing.T) {
	c, ctx := dial(t, start(t)), proof.Soon(t)
	proof.Must(t, c.Set(ctx, "row", "x", 0).Err())
	s := redisstore.New(c, nil)
	write := func(id string) error {
		_, err := once.DoTx(ctx, s, parking.For(id), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
			return "", tx.Del(ctx, "row").Err() // which a full server allows
		})
		return err
	}
	proof.Must(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	if err := write("1"); !redis.HasErrorPrefix(err, "OOM") {
		t.Errorf("DoTx on a full server returned %v", err)
	}
	if c.Exists(ctx, "row").Val() != 1 {
		t.Error("the command ran")
	}
	proof.Must(t, c.ConfigSet(ctx, "maxmemory", "0").Err())
	proof.Must(t, write("1"))
}

// A script that fails is not rolled back, so nobody may run its commands again.
func TestATransactionWithoutPermissionIsNotRunAgain(t *testing.T) {
	server := start(t)
	admin, ctx := dial(t, server), proof.Soon(t)
	for _, command := range []string{"set", "zrem", "pexpireat"} {
		proof.Must(t, admin.Do(ctx, "ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "+@all", "-"+command).Err())
		o, err := redis.ParseURL(server.DSN())
		proof.Must(t, err)
		o.Username, o.Password = "worker", "pw"
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() })
		s := redisstore.New(c, nil)
		for range 2 {
			_, err := once.DoTx(ctx, s, parking.For(command), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
				return "", tx.Incr(ctx, "row "+command).Err()
			})
			if !errors.Is(err, once.ErrParked) && !errors.Is(err, once.ErrOutcomeUnknown) {
				t.Errorf("without %s, DoTx returned %v", command, err)
			}
		}
		if n := admin.Get(ctx, "row "+command).Val(); n != "1" {
			t.Errorf("without %s, the command ran %q times", command, n)
		}
		rec, err := redisstore.New(admin, nil).Get(ctx, parking.For(command).Key())
		if err != nil || rec.Status != once.Parked {
			t.Errorf("without %s, the record is %v, %v", command, rec.Status, err)
		}
	}
}

// If no replica confirms a commit, it may be lost in a failover, although the
// primary has it.
func TestACommitThatNoReplicaHasIsUnknown(t *testing.T) {
	primary, followers := startReplicated(t, 1)
	c, ctx := primary.client(t), proof.Soon(t)
	s := redisstore.New(c, &redisstore.Options{Replicas: 1, ConfirmTimeout: 100 * time.Millisecond})
	write := func(id string) error {
		r := once.ClaimRequest{Fence: once.Fence{Key: parking.For(id).Key(), Owner: [16]byte{1}}, Lease: time.Hour}
		_, err := s.Transact(ctx, []once.ClaimRequest{r}, func(tx *redisstore.Tx, recs []once.Record) ([]once.Settlement, error) {
			if id == "2" {
				cut(t, primary, followers)
			}
			r.Fence.Attempt = recs[0].Attempt
			return []once.Settlement{{Fence: r.Fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}}, tx.Incr(ctx, "row").Err()
		})
		return err
	}
	proof.Await(t, "a transaction is confirmed", func() bool { return write("1") == nil })
	if err := write("2"); !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("Transact that no replica has returned %v", err)
	}
	if n := c.Get(ctx, "row").Val(); n != "2" {
		t.Errorf("%s rows were written", n)
	}
}
