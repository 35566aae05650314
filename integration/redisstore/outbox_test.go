//go:build linux

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/redis/go-redis/v9"
)

func outgoing(id, order string) store.Outgoing {
	return store.Outgoing{Message: broker.Message{ID: id, Topic: "paid", OrderingKey: order, Body: []byte(id)}}
}

func putOne(ctx context.Context, s *redisstore.Store, m store.Outgoing) error {
	tx := s.Begin()
	if err := s.PutTx(ctx, tx, []store.Outgoing{m}); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// What waits for replicas keeps the same rules.
func TestTxConformanceWithReplicas(t *testing.T) {
	primary, _ := startReplicated(t, 1)
	options := &redisstore.Options{Replicas: 1, ConfirmTimeout: 2 * time.Second}
	s, c := redisstore.New(primary.client(t), options), primary.client(t)
	proof.Await(t, "a replica confirms", func() bool {
		_, err := s.Get(proof.Soon(t), parking.For("0").Key())
		return err == nil
	})
	open := func() *redisstore.Store { return redisstore.New(primary.client(t), options) }
	storetest.RunTx(t, txHarness(open, c, "row:"))
}

// Documents are in one slot, so only transactions with something else need that
// of the store.
func TestInAClusterWithoutASlotThereIsAShelfAndNoOutbox(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: startCluster(t)})
	t.Cleanup(func() { _ = cluster.Close() })
	s, ctx := redisstore.New(cluster, nil), proof.Soon(t)
	if err := putOne(ctx, s, outgoing("1", "")); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("PutTx returned %v", err)
	}
	_, err := s.Register(ctx, store.Consumer{Name: "stock", Source: "queue"})
	proof.Must(t, err)
	shelved := store.Shelved{Consumer: "stock", Message: broker.Message{ID: "1"}, State: store.Parked}
	proof.Must(t, s.Shelve(ctx, []store.Shelved{shelved}))
	p, err := s.OpenPosition(ctx, "stock", "0")
	if err != nil || !p.Shelved {
		t.Errorf("OpenPosition returned %v, %v", p, err)
	}
	to := p
	to.Log, to.Offset = "log", 1
	err = s.TransactAt(ctx, p, to, func(tx *redisstore.Tx) error { return tx.Incr(ctx, "{00}row").Err() })
	if !errors.Is(err, once.ErrInvalid) {
		t.Errorf("TransactAt with a command returned %v", err)
	}
}

// A full server refuses messages, and lets those that it has be published.
func TestAFullServerRefusesMessagesAndEndsThem(t *testing.T) {
	c, ctx := dial(t, start(t)), proof.Soon(t)
	s := redisstore.New(c, nil)
	proof.Must(t, putOne(ctx, s, outgoing("1", "order")))
	proof.Must(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	if err := putOne(ctx, s, outgoing("2", "order")); !redis.HasErrorPrefix(err, "OOM") {
		t.Errorf("a commit on a full server returned %v", err)
	}
	all, err := s.Outgoing(ctx, store.OutgoingQuery{State: store.Pending})
	if err != nil || len(all) != 1 {
		t.Errorf("Outgoing returned %d messages, %v", len(all), err)
	}
	if n, err := s.Sent(ctx, [16]byte{}, all, store.Delete); n != 1 || err != nil {
		t.Errorf("Sent returned %d, %v", n, err)
	}
	proof.Must(t, c.ConfigSet(ctx, "maxmemory", "0").Err())
	proof.Must(t, putOne(ctx, s, outgoing("2", "order")))
}

// A replica would show messages that a failover drops, and hear nothing.
func TestAReplicaIsNotAskedForMessages(t *testing.T) {
	primary, followers := startReplicated(t, 1)
	ctx := proof.Soon(t)
	proof.Must(t, putOne(ctx, redisstore.New(primary.client(t), nil), outgoing("1", "")))
	replica := redisstore.New(followers[0].client(t), nil)
	if _, err := replica.Outgoing(ctx, store.OutgoingQuery{State: store.Pending}); !redis.HasErrorPrefix(err, "READONLY") {
		t.Errorf("Outgoing returned %v", err)
	}
	if _, err := replica.HearOutbox(ctx); !redis.HasErrorPrefix(errors.Unwrap(err), "READONLY") {
		t.Errorf("HearOutbox returned %v", err)
	}
	e, err := redisstore.New(primary.client(t), nil).HearOutbox(ctx)
	proof.Must(t, err)
	defer e.Close()
	host, port, _ := strings.Cut(followers[0].address, ":")
	proof.Must(t, followers[0].client(t).Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	proof.Must(t, primary.client(t).Do(ctx, "REPLICAOF", host, port).Err())
	if err := e.Wait(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("after a failover, Wait returned %v", err)
	}
}

// losesReplies loses some replies of relays.
type losesReplies struct {
	*redisstore.Store
	sent atomic.Int64
}

func (l *losesReplies) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	n, err := l.Store.Sent(ctx, relay, ms, then)
	if l.sent.Add(1)%5 == 0 && err == nil {
		return 0, errors.New("the reply was lost")
	}
	return n, err
}

// A failover loses what no replica has: messages together with their transactions,
// also if they were published. A store that waits for replicas shows none of these
// to relays.
func TestAFailoverLosesMessagesWithTheirTransactions(t *testing.T) {
	primary, followers := startReplicated(t, 1)
	ctx := proof.Soon(t)
	s, c := redisstore.New(primary.client(t), nil), primary.client(t)
	order := func(s *redisstore.Store, id string) error {
		_, err := once.DoTx(ctx, s, parking.For(id), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
			return "ordered", s.PutTx(ctx, tx, []store.Outgoing{outgoing(id, "order")})
		})
		return err
	}
	pending := func(s *redisstore.Store) (ids []string) {
		all, err := s.Outgoing(ctx, store.OutgoingQuery{State: store.Pending})
		proof.Must(t, err)
		for _, m := range all {
			ids = append(ids, m.Message.ID)
		}
		return ids
	}
	proof.Must(t, order(s, "before"))
	proof.Must(t, c.Wait(ctx, 1, proof.Patience).Err())
	cut(t, primary, followers)
	proof.Must(t, order(s, "after"))
	if ids := pending(s); !slices.Equal(ids, []string{"before", "after"}) {
		t.Errorf("a relay would publish %q", ids)
	}
	waits := redisstore.New(c, &redisstore.Options{Replicas: 1, ConfirmTimeout: 100 * time.Millisecond})
	if all, err := waits.Outgoing(ctx, store.OutgoingQuery{State: store.Pending}); err == nil {
		t.Errorf("with Replicas, a relay would publish %d messages", len(all))
	}
	primary.kill()
	promote(t, followers[0])
	after := redisstore.New(followers[0].client(t), nil)
	if ids := pending(after); !slices.Equal(ids, []string{"before"}) {
		t.Errorf("after the failover, the outbox has %q", ids)
	}
	rec, err := after.Get(ctx, parking.For("after").Key())
	if err != nil || rec.Status != once.Absent {
		t.Errorf("after the failover, the key of what is lost is %v, %v", rec.Status, err)
	}
}

// Messages of an ordering key are published in the order of their commits,
// also although writers compete and relays lose replies. What is published again has
// its ID, so only its first time counts.
func TestNoMessageIsLostAndTheirOrderIsKept(t *testing.T) {
	const writers, each, keys = 4, 50, 3
	n := startNode(t)
	c, ctx := n.client(t), proof.Soon(t)
	b := membroker.New(nil)
	b.Queue("paid")
	relaying, stop := context.WithCancel(ctx)
	defer stop()
	var relays sync.WaitGroup
	for range 2 {
		s := redisstore.New(n.client(t), &redisstore.Options{Options: once.Options{Logger: proof.Logger(t)}})
		relay := &outbox.Relay{Store: &losesReplies{Store: s}, Publisher: b.Publisher(), Batch: 7, Logger: proof.Logger(t)}
		relays.Go(func() { _ = relay.Run(relaying) })
	}
	var writing sync.WaitGroup
	for w := range writers {
		s := redisstore.New(n.client(t), nil)
		writing.Go(func() {
			for i := range each {
				key := fmt.Sprint("key-", i%keys)
				id := fmt.Sprintf("%d-%d", w, i)
				proof.Await(t, "a message is put", func() bool {
					tx := s.Begin()
					if err := s.PutTx(ctx, tx, []store.Outgoing{outgoing(id, key)}); err != nil {
						return false
					}
					tx.RPush(ctx, key, id)
					return tx.Commit(ctx) == nil
				})
			}
		})
	}
	writing.Wait()
	s := redisstore.New(c, nil)
	proof.Await(t, "all messages are published", func() bool {
		depths, err := s.OutboxDepth(ctx, 1)
		return err == nil && len(depths) == 0
	})
	stop()
	relays.Wait()
	seen, inOrder := map[string]bool{}, map[string][]string{}
	for _, m := range b.Messages("paid") {
		if !seen[m.ID] {
			seen[m.ID] = true
			inOrder[m.OrderingKey] = append(inOrder[m.OrderingKey], m.ID)
		}
	}
	for i := range keys {
		key := fmt.Sprint("key-", i)
		want := c.LRange(ctx, key, 0, -1).Val()
		if got := inOrder[key]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s was published as\n%v, and committed as\n%v", key, got, want)
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d of %d messages were published", len(seen), writers*each)
	}
}
