//go:build linux

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

// These tests show each row of the table in docs/stores/redis.md.

var parking = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

// pay does work under a key, which must run, and be answered, or else must not.
func pay(t *testing.T, c redis.UniversalClient, id string, runs bool) {
	t.Helper()
	ran := false
	got, err := once.Do(proof.Soon(t), redisstore.New(c, nil), parking.For(id), func(context.Context, once.Key) (string, error) {
		ran = true
		return "paid", nil
	})
	if err != nil || got != "paid" || ran != runs {
		t.Errorf("the work of %s ran: %t, and its answer is %q, %v", id, ran, got, err)
	}
}

func TestWithoutAFileAKilledServerForgets(t *testing.T) {
	n := startNode(t)
	pay(t, n.client(t), "1", true)
	n.kill()
	n.start(t)
	pay(t, n.client(t), "1", true)
}

// A snapshot is what is left of a server without an append-only file.
func TestASnapshotKeepsWhatCameBeforeIt(t *testing.T) {
	n := startNode(t)
	pay(t, n.client(t), "before", true)
	proof.Must(t, n.client(t).Save(proof.Soon(t)).Err())
	pay(t, n.client(t), "after", true)
	n.kill()
	n.start(t)
	pay(t, n.client(t), "before", false)
	pay(t, n.client(t), "after", true)
}

func TestEverySecondAKilledServerLosesNothingAndAMachineItsLastSecond(t *testing.T) {
	n := startNode(t, "--appendonly", "yes", "--appendfsync", "everysec")
	pay(t, n.client(t), "1", true)
	n.kill()
	n.start(t)
	pay(t, n.client(t), "1", false)
	files, err := filepath.Glob(filepath.Join(n.dir, "appendonlydir", "*.incr.aof"))
	if proof.Must(t, err); len(files) != 1 {
		t.Fatalf("the append-only files are %q", files)
	}
	synced, err := os.Stat(files[0])
	proof.Must(t, err)
	pay(t, n.client(t), "2", true)
	n.kill()
	proof.Must(t, os.Truncate(files[0], synced.Size())) // what a crash of the machine may leave
	n.start(t)
	pay(t, n.client(t), "1", false)
	pay(t, n.client(t), "2", true)
}

// A primary that comes back empty has its replicas forget too, if nobody has
// promoted one of them before.
func TestAPrimaryThatComesBackEmptyEmptiesItsReplicas(t *testing.T) {
	primary, followers := startReplicated(t, 1)
	pay(t, primary.client(t), "1", true)
	primary.kill()
	primary.start(t)
	await(t, primary, 1)
	promote(t, followers[0])
	pay(t, followers[0].client(t), "1", true)
}

func TestAFailoverLosesWhatNoReplicaHas(t *testing.T) {
	primary, followers := startReplicated(t, 2)
	sentinels := startSentinels(t, primary, 2)
	c := dialSentinels(t, sentinels)
	pay(t, c, "before", true)
	proof.Must(t, primary.client(t).Wait(proof.Soon(t), 2, proof.Patience).Err())
	cut(t, primary, followers)
	pay(t, c, "after", true)
	primary.kill()
	proof.Await(t, "a replica is promoted", func() bool { return c.Set(proof.Soon(t), "x", "", 0).Err() == nil })
	pay(t, c, "before", false)
	pay(t, c, "after", true)
}

// Callers learn what no replica has.
func TestWithoutReplicasNothingIsConfirmed(t *testing.T) {
	primary, followers := startReplicated(t, 2)
	ctx := proof.Soon(t)
	store := redisstore.New(primary.client(t), &redisstore.Options{Replicas: 1, ConfirmTimeout: 100 * time.Millisecond})
	fence := once.Fence{Key: once.Key{Operation: "pay", ID: "1"}, Owner: [16]byte{1}, Attempt: 1}
	other := once.Fence{Key: once.Key{Operation: "pay", ID: "2"}, Owner: [16]byte{1}, Attempt: 1}
	end := once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}
	claim := func(fence once.Fence) error {
		rec, err := store.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: time.Hour})
		if err == nil && !rec.HeldBy(fence.Owner) {
			t.Errorf("Claim returned %v", rec)
		}
		return err
	}
	proof.Await(t, "a claim is confirmed", func() bool { return claim(fence) == nil })
	cut(t, primary, followers)
	get := func() error {
		_, err := store.Get(ctx, fence.Key)
		return err
	}
	for range 2 { // the second time, there is nothing left to change
		for call, err := range map[string]error{
			"Claim":               claim(other),
			"Claim, held already": claim(fence),
			"Extend":              store.Extend(ctx, fence, time.Hour),
			"Get":                 get(),
		} {
			if err == nil || !strings.Contains(err.Error(), "0 of 1 replicas confirmed") {
				t.Errorf("%s returned %v", call, err)
			}
		}
	}
	for range 2 {
		if err := store.Settle(ctx, end); err == nil || errors.Is(err, once.ErrLeaseLost) {
			t.Errorf("Settle returned %v", err)
		}
	}
	proof.Must(t, primary.client(t).Do(ctx, "ACL", "SETUSER", "follower", "on").Err())
	await(t, primary, 2)
	proof.Await(t, "what was applied is confirmed", func() bool { return store.Settle(ctx, end) == nil })
	promote(t, followers[0])
	if rec, err := redisstore.New(followers[0].client(t), nil).Get(ctx, fence.Key); err != nil || rec.Status != once.Done {
		t.Errorf("the replica has %v, %v", rec, err)
	}
}

// Sentinel promotes the replica that has received most, so what one has is kept.
func TestAFailoverKeepsWhatAReplicaHas(t *testing.T) {
	const ids, callers = 60, 3
	primary, _ := startReplicated(t, 2, "--min-replicas-to-write", "1")
	sentinels := startSentinels(t, primary, 2)
	l := &ledger{done: make(map[string]int)}
	op := &once.Operation[string]{Name: "pay", Lookup: l.lookUp, Policy: once.Policy{Lease: 10 * time.Second}}
	options := func() *redisstore.Options {
		return &redisstore.Options{Options: once.Options{Logger: proof.Logger(t)}, Replicas: 1, ConfirmTimeout: 500 * time.Millisecond}
	}
	call := func(store *redisstore.Store, i int, during func()) (ran bool) {
		id, ctx := fmt.Sprint(i), proof.Soon(t)
		got, err := "", context.Canceled
		for err != nil && ctx.Err() == nil {
			got, err = once.Do(ctx, store, op.For(id), func(ctx context.Context, _ once.Key) (string, error) {
				if err := ctx.Err(); err != nil {
					return "", once.NotDone(err)
				}
				l.do(id)
				during()
				ran = true
				return "paid " + id, nil
			})
		}
		if err != nil || got != "paid "+id {
			t.Errorf("the answer of %s is %q, %v", id, got, err)
		}
		return ran
	}
	var killing sync.Once
	var calling sync.WaitGroup
	for range callers {
		store := redisstore.New(dialSentinels(t, sentinels), options())
		calling.Go(func() {
			for i := range ids {
				call(store, i, func() {
					if i == ids/3 {
						killing.Do(primary.kill)
					}
				})
			}
		})
	}
	calling.Wait()
	after := redisstore.New(dialSentinels(t, sentinels), options())
	for i := range ids {
		if call(after, i, func() {}) {
			t.Errorf("%d was forgotten", i)
		}
		if n := l.done[fmt.Sprint(i)]; n != 1 {
			t.Errorf("%d was paid %d times", i, n)
		}
	}
}

// Synced needs Redis 7.2. An older server says so.
func TestSyncedWaitsForTheFile(t *testing.T) {
	fence := once.Fence{Key: once.Key{Operation: "pay", ID: "1"}, Owner: [16]byte{1}}
	claim := func(n *node) error {
		store := redisstore.New(n.client(t), &redisstore.Options{Synced: true, ConfirmTimeout: 2 * time.Second})
		_, err := store.Claim(proof.Soon(t), once.ClaimRequest{Fence: fence, Lease: time.Hour})
		return err
	}
	with, without := startNode(t, "--appendonly", "yes"), startNode(t)
	if claim(without) == nil {
		t.Error("a server without a file confirmed a claim")
	}
	known, err := with.client(t).Do(proof.Soon(t), "COMMAND", "INFO", "WAITAOF").Slice()
	proof.Must(t, err)
	if err := claim(with); (err == nil) != (known[0] != nil) {
		t.Errorf("on a server that knows WAITAOF (%t), Claim returned %v", known[0] != nil, err)
	}
}

// WAIT has no key, so that a cluster client by itself may ask any server.
func TestInAClusterTheServerOfTheKeyWaits(t *testing.T) {
	addresses := startCluster(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
	t.Cleanup(func() { _ = cluster.Close() })
	replica := startNode(t, clusterSettings(t)...)
	meet(t, replica, addresses[0])
	first := redis.NewClient(&redis.Options{Addr: addresses[0]})
	t.Cleanup(func() { _ = first.Close() })
	ctx := proof.Soon(t)
	id, err := first.ClusterMyID(ctx).Result()
	proof.Must(t, err)
	proof.Await(t, "the replica knows the first server", func() bool {
		return replica.client(t).Do(ctx, "CLUSTER", "REPLICATE", id).Err() == nil
	})
	proof.Await(t, "the replica follows", func() bool {
		info, err := first.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "state=online")
	})
	store := redisstore.New(cluster, &redisstore.Options{Replicas: 1, ConfirmTimeout: 200 * time.Millisecond})
	claim := func(i int) (slot int64, err error) {
		fence := once.Fence{Key: once.Key{Operation: "pay", ID: fmt.Sprint(i)}, Owner: [16]byte{1}}
		_, err = store.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: time.Hour})
		id := fence.Key.UUID()
		slot, failed := cluster.ClusterKeySlot(ctx, fmt.Sprintf("{%02x}", id[0])).Result()
		proof.Must(t, failed)
		return slot, err
	}
	confirmed := map[bool]int{}
	for i := range 30 {
		slot, err := claim(i)
		replicated := slot < slots/3
		if replicated {
			proof.Await(t, "a replica confirms", func() bool {
				_, err = claim(i)
				return err == nil
			})
		}
		if confirmed[replicated]++; !replicated && err == nil {
			t.Errorf("a claim in slot %d, which no replica has, was confirmed", slot)
		}
	}
	if len(confirmed) != 2 {
		t.Errorf("the keys were in slots with and without a replica: %v", confirmed)
	}
}
