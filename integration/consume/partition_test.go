//go:build linux

package consume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
)

const (
	partitionNodes  = 3
	partitionRelays = 2
	partitionKeys   = 12
	partitionSlow   = 23 // one message in so many takes its time
	enoughApart     = 60 // messages that are handled while a node is apart, at least
)

// TestPartitionedRabbitMQ separates a node of three from the others, while
// messages go from the outbox through relays and a queue to consumers, and their
// processes are killed. First it is the node that leads the queue, then another
// one. The rest of the cluster goes on, which it cannot with a classic queue on
// the separated node. In the end each message was handled once.
func TestPartitionedRabbitMQ(t *testing.T) {
	cluster := offices.OwnRabbitMQs(t, partitionNodes)
	seed, end := proof.Seed(t), time.Now().Add(proof.Soaking(t))
	for round := uint64(0); ; round++ {
		for stream, c := range []struct {
			name    string
			options rabbitbroker.QueueOptions
		}{
			{"quorum with one active session", rabbitbroker.QueueOptions{SingleActive: true}},
			{"quorum", rabbitbroker.QueueOptions{}},
			{"classic with one active session", rabbitbroker.QueueOptions{Classic: true, SingleActive: true}},
		} {
			t.Run(fmt.Sprint("round ", round, " ", c.name), func(t *testing.T) {
				newRift(t, cluster, c.options, rand.New(rand.NewPCG(seed+round, uint64(stream)))).run(t)
			})
		}
		if t.Failed() || !time.Now().Before(end) {
			return
		}
	}
}

// rift is a cluster that is partitioned, and those who use it.
type rift struct {
	*world
	cluster   *server.RabbitMQCluster
	options   rabbitbroker.QueueOptions // of the queue
	chance    *rand.Rand
	post      post // which has the addresses of all nodes
	box       *outbox.Outbox[pgx.Tx]
	relays    *fleet.Fleet
	consumers *fleet.Fleet
	calls     string // the file of attempts

	mu  sync.Mutex
	put int // messages
}

func newRift(t *testing.T, cluster *server.RabbitMQCluster, o rabbitbroker.QueueOptions, chance *rand.Rand) *rift {
	r := &rift{world: newWorldOn(t, pgStore), cluster: cluster, options: o, chance: chance, calls: filepath.Join(t.TempDir(), "calls")}
	var addresses []string
	for _, node := range cluster.Nodes {
		addresses = append(addresses, node.DSN())
	}
	r.post = post{rabbitC, strings.Join(addresses, " "), offices.Name("rift")}
	for queue, options := range map[string]rabbitbroker.QueueOptions{
		r.post.Place: o, r.post.Place + ".dead": {}, r.probe(): {},
	} {
		must(t, r.post.rabbit().DeclareQueue(soon(t), queue, options))
	}
	r.box = outbox.New(pgstore.New(r.PGX, nil), nil)
	p := plan{Base: r.Place, Post: r.post, Calls: r.calls, Shape: shapeTx}
	r.consumers = r.keep(t, p, partitionNodes)
	p.Relays = true
	r.relays = r.keep(t, p, partitionRelays)
	return r
}

// keep starts processes, each of which prefers another node.
func (r *rift) keep(t *testing.T, p plan, size int) *fleet.Fleet {
	all := strings.Fields(p.Post.Address)
	return fleet.Keep(t, size, func(n int) any {
		p := p
		first := n % len(all)
		p.Name, p.Post.Address = fmt.Sprint("p", n), strings.Join(append(all[first:len(all):len(all)], all[:first]...), " ")
		return p
	})
}

// relay publishes the messages of the outbox.
func (p plan) relay(ctx context.Context) error {
	pool, err := p.Base.Open(4)
	if err != nil {
		return err
	}
	defer pool.Close()
	publisher := p.Post.rabbit().Publisher("")
	defer publisher.Close()
	relay := &outbox.Relay{Store: pgstore.New(pool.PGX, nil), Publisher: publisher, Batch: 20, Lease: 5 * time.Second,
		PublishTime: 2 * time.Second, StopTime: 5 * time.Second, Logger: p.logger(),
		Retry: outbox.Retry{Attempts: 10_000, First: 20 * time.Millisecond, Limit: 200 * time.Millisecond}}
	fmt.Println(saysReady)
	return relay.Run(ctx)
}

func (r *rift) run(t *testing.T) {
	begun := time.Now()
	stop := r.produce(t)
	r.progress(t, enoughApart, "before a partition")
	first := r.leader(t, 0)
	r.separate(t, first)
	r.separate(t, (first+1+r.chance.IntN(partitionNodes-1))%partitionNodes)
	stop()
	r.handled(t, r.put)
	r.consumers.Stop()
	r.relays.Stop()
	r.judge(t)
	n := 0
	for _, times := range tally(t, r.calls+deliveries) {
		n += times
	}
	t.Logf("%d messages, %d deliveries, %d consumers and %d relays were killed, in %v", r.put, n, r.consumers.Deaths(),
		r.relays.Deaths(), time.Since(begun).Round(100*time.Millisecond))
}

// produce puts messages into the outbox, until stop is called.
func (r *rift) produce(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var producing sync.WaitGroup
	producing.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := r.putNext(context.WithoutCancel(ctx)); err != nil {
				t.Error("put a message:", err)
				return
			}
			<-tick.C
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		producing.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func (r *rift) putNext(ctx context.Context) error {
	i := r.count()
	n := note{Kind: plain, Ord: fmt.Sprint("k", i%partitionKeys), Seq: int64(i/partitionKeys + 1)}
	if i%partitionSlow == 0 {
		n.Kind = slow
	}
	tx, err := r.PGX.Begin(ctx)
	if err != nil {
		return err
	}
	if err = r.box.Put(ctx, tx, n.message(r.post.Place, fmt.Sprint("m", i))); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if err = tx.Commit(ctx); err == nil {
		r.mu.Lock()
		r.put++
		r.mu.Unlock()
	}
	return err
}

// count returns how many messages were put.
func (r *rift) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put
}

// progress waits until so many messages are handled that are put from now on.
func (r *rift) progress(t *testing.T, n int, when string) {
	t.Helper()
	from := r.count()
	await(t, fmt.Sprintf("%d new messages are handled %s", n, when), func() bool {
		var handled int
		must(t, r.SQL.QueryRow("SELECT count(*) FROM effect WHERE kind = 'handled' AND substr(id, 2)::int >= $1", from).Scan(&handled))
		return handled >= n
	})
}

// leader waits until the queue has a leader, as a node sees it, and returns it.
func (r *rift) leader(t *testing.T, seenBy int) (leader int) {
	t.Helper()
	await(t, "the queue has a leader", func() (found bool) {
		var err error
		leader, _, err = r.cluster.Leader(t.Context(), seenBy, r.post.Place)
		return err == nil && leader >= 0
	})
	return leader
}

// kill kills a consumer and a relay.
func (r *rift) kill() {
	r.consumers.Kill(r.chance.IntN(partitionNodes))
	r.relays.Kill(r.chance.IntN(partitionRelays))
}

// separate keeps a node apart until the others have gone on without it.
func (r *rift) separate(t *testing.T, node int) {
	begun := time.Now()
	other := (node + 1) % partitionNodes
	led := r.leader(t, other) == node
	client := r.pin(t, node)
	r.kill()
	r.cluster.Isolate(node)
	client.reports(t)
	r.kill()
	if led && !r.options.Classic {
		await(t, "another node leads the queue", func() bool { return r.leader(t, other) != node })
	}
	if led && r.options.Classic {
		from := r.count()
		await(t, "messages wait for the queue", func() bool { return r.count() >= from+enoughApart })
	} else {
		r.progress(t, enoughApart, "while a node is apart")
	}
	await(t, "the node has paused", func() bool {
		_, err := r.cluster.Running(t.Context(), node)
		return err != nil
	})
	apart := time.Since(begun)
	r.cluster.Heal()
	for i := range partitionNodes {
		await(t, "all nodes see each other again", func() bool {
			running, err := r.cluster.Running(t.Context(), i)
			return err == nil && len(running) == partitionNodes
		})
	}
	r.kill()
	client.comesBack(t)
	r.progress(t, enoughApart, "after a partition")
	t.Logf("node %d, which led the queue: %v, was apart for %v", node, led, apart.Round(100*time.Millisecond))
}

// judge checks everything when all messages are handled.
func (r *rift) judge(t *testing.T) {
	r.onceEach(t, r.put)
	if r.options.SingleActive {
		r.inOrder(t)
	}
	if all := r.shelf(t); len(all) > 0 {
		t.Errorf("on the shelf is %+v", all)
	}
	lag, err := r.post.rabbit().Queue(r.post.Place).(broker.Lagger).Lag(soon(t))
	if err != nil || lag.Messages > 0 {
		t.Errorf("%d messages are left in the queue, %v", lag.Messages, err)
	}
}

// probe is the name of a queue for clients that stay with a node.
func (r *rift) probe() string { return r.post.Place + ".probe" }

// pinned is a client that knows one node only, with a queue of its own.
type pinned struct {
	rift      *rift
	broker    *rabbitbroker.Broker
	publisher broker.Publisher
	session   broker.Session
	sent      int
	confirmed map[string]bool
	received  map[string]bool
}

// pin returns a client of a node.
func (r *rift) pin(t *testing.T, node int) *pinned {
	c := &pinned{rift: r, broker: rabbitbroker.New(r.cluster.Nodes[node].DSN(), nil), confirmed: make(map[string]bool),
		received: make(map[string]bool)}
	c.publisher = c.broker.Publisher("")
	t.Cleanup(func() { _ = c.publisher.Close() })
	must(t, c.publish())
	c.open(t)
	must(t, c.receive(t))
	return c
}

func (c *pinned) open(t *testing.T) {
	await(t, "the node takes a session", func() (opened bool) {
		var err error
		c.session, err = c.broker.Queue(c.rift.probe()).Open(soon(t), 10)
		return err == nil
	})
}

// publish publishes a message, which is confirmed unless the error is not nil.
func (c *pinned) publish() error {
	c.sent++
	id := fmt.Sprint("probe", c.sent)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	errs := c.publisher.Publish(ctx, []*broker.Message{{ID: id, Topic: c.rift.probe()}})
	if errs != nil {
		return errs[0]
	}
	c.confirmed[id] = true
	return nil
}

// receive settles what comes next.
func (c *pinned) receive(t *testing.T) error {
	ds, err := c.session.Receive(soon(t), 10)
	for _, d := range ds {
		c.received[d.Message.ID] = true
	}
	if err == nil {
		err = c.session.Ack(soon(t), ds)
	}
	return err
}

// reports waits until the client is told that its node is apart: nothing is
// confirmed, and its session ends.
func (c *pinned) reports(t *testing.T) {
	if c.publish() == nil {
		t.Error("a message was confirmed where most nodes are missing")
	}
	err := c.receive(t)
	for err == nil {
		err = c.receive(t)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error("the session has not ended")
	}
	if c.publish() == nil {
		t.Error("a message was confirmed by a node that has paused")
	}
}

// comesBack waits until the client works again, and has received all that was
// confirmed.
func (c *pinned) comesBack(t *testing.T) {
	await(t, "a message is confirmed again", func() bool { return c.publish() == nil })
	c.open(t)
	left := func() (ids []string) {
		for id := range c.confirmed {
			if !c.received[id] {
				ids = append(ids, id)
			}
		}
		return ids
	}
	for len(left()) > 0 {
		if err := c.receive(t); err != nil {
			t.Fatalf("%v are lost: %v", left(), err)
		}
	}
	must(t, c.session.Close(soon(t)))
}
