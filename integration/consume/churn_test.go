//go:build linux

package consume

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	rebalances  = 40  // at least, of each group; more with ONCE_SOAK
	stretch     = 10  // rebalances in a row, in which
	leastInOne  = 100 // messages are handled
	churnSize   = 3   // processes
	churnKeys   = 24
	churnKills  = 4  // one member in so many is killed, and does not leave
	churnPieces = 5  // messages that are published together
	churnSlow   = 37 // one message in so many takes its time, so that partitions move meanwhile
)

// TestAGroupIsRebalancedEverySecond replaces a member of a group each second,
// while messages come. Most leave the group in order, and some are killed. What
// counts are the rebalances that the cluster has completed. Between them, the
// group makes progress.
func TestAGroupIsRebalancedEverySecond(t *testing.T) {
	address := offices.Kafka(t) // kfake does not write down its rebalances
	soaking := proof.Soaking(t)
	for name, p := range map[string]plan{
		"positions": {Shape: shapeBatch, Check: true},
		"keys":      {Shape: shapeTx},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChurn(t, address, p)
			begun := time.Now()
			c.publishWhile(t, func() {
				c.turnOver(t, func() bool { return c.seen.count() >= rebalances && time.Since(begun) >= soaking })
			})
			n, took := c.seen.count(), time.Since(begun)
			c.judge(t)
			t.Logf("%d rebalances in %v by %d members that left and %d that were killed; %d messages (%d deliveries), at least %d in %d rebalances",
				n, took.Round(100*time.Millisecond), c.turns-c.fleet.Deaths(), c.fleet.Deaths(), c.published, c.deliveries(t), c.slowest(), stretch)
		})
	}
}

// churn is a group of processes that are replaced.
type churn struct {
	*world
	office    *office
	fleet     *fleet.Fleet
	seen      *generations
	turns     int    // members that were replaced
	published int    // messages
	calls     string // the file of attempts
	progress  []int  // how many messages were handled when the group was rebalanced for the n-th time
}

func newChurn(t *testing.T, address string, p plan) *churn {
	w := newWorldOn(t, pgStore)
	o := officeOf(t, address, 2*churnSize)
	p.Base, p.Post, p.Calls = w.Place, o.post, filepath.Join(t.TempDir(), "calls")
	c := &churn{world: w, office: o, calls: p.Calls, seen: watchGroup(t, address, o.Place)}
	c.fleet = startFleet(t, p, churnSize)
	return c
}

// publishWhile publishes until a function returns.
func (c *churn) publishWhile(t *testing.T, do func()) {
	done := make(chan struct{})
	var publishing sync.WaitGroup
	publishing.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				c.office.publish(t, c.next())
			}
		}
	})
	defer publishing.Wait() // also if do ends the goroutine
	defer close(done)
	do()
}

// next returns the next messages. Those of a key are numbered.
func (c *churn) next() (ms []*broker.Message) {
	for range churnPieces {
		n := note{Kind: plain, Ord: fmt.Sprint("k", c.published%churnKeys), Seq: int64(c.published/churnKeys + 1)}
		if c.published%churnSlow == 0 {
			n.Kind = slow
		}
		ms = append(ms, n.message(c.office.topic, fmt.Sprint("m", c.published)))
		c.published++
	}
	return ms
}

// turnOver replaces a member each second, until it was enough. It waits for the
// group to have noticed.
func (c *churn) turnOver(t *testing.T, enough func() bool) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	await(t, "the group has its first members", func() bool { return c.seen.count() > 0 })
	for !enough() {
		before := c.seen.count()
		if c.turns++; c.turns%churnKills == 0 {
			c.fleet.Kill(c.turns)
		} else {
			c.fleet.Relieve(c.turns)
		}
		await(t, "the group is rebalanced", func() bool { return c.seen.count() > before })
		c.note(t)
		<-tick.C
	}
}

// note records what was handled until now, for each rebalance since the last call.
func (c *churn) note(t *testing.T) {
	var handled int
	must(t, c.SQL.QueryRow("SELECT count(*) FROM effect WHERE kind = 'handled'").Scan(&handled))
	for len(c.progress) < c.seen.count() {
		c.progress = append(c.progress, handled)
	}
}

// deliveries returns how many messages came to a process.
func (c *churn) deliveries(t *testing.T) (n int) {
	for _, times := range tally(t, c.calls+deliveries) {
		n += times
	}
	return n
}

// slowest returns the smallest number of messages that were handled during a
// stretch.
func (c *churn) slowest() int {
	least := c.published
	for i := stretch; i < len(c.progress); i++ {
		least = min(least, c.progress[i]-c.progress[i-stretch])
	}
	return least
}

// judge checks everything when all messages are handled.
func (c *churn) judge(t *testing.T) {
	if n := c.slowest(); n < leastInOne {
		t.Errorf("during %d rebalances, only %d messages were handled", stretch, n)
	}
	c.handled(t, c.published)
	c.fleet.Stop()
	c.onceEach(t, c.published)
	c.inOrder(t)
	if all := c.shelf(t); len(all) > 0 {
		t.Errorf("on the shelf is %+v", all)
	}
}

// generations are those of a group, which the cluster writes to a topic of its
// own when it has completed a rebalance.
type generations struct {
	mu   sync.Mutex
	seen map[int32]bool
}

// watchGroup follows a group until the test ends.
func watchGroup(t *testing.T, address, group string) *generations {
	g := &generations{seen: make(map[int32]bool)}
	client := offices.KafkaClient(t, address, kgo.ConsumeTopics("__consumer_offsets"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	go func() {
		for {
			fetched := client.PollFetches(context.Background())
			if fetched.IsClientClosed() {
				return
			}
			// It has an error as long as nobody has used a group, because the topic does not exist.
			fetched.EachRecord(func(r *kgo.Record) { g.note(group, r) })
		}
	}()
	return g
}

// note records a generation with members.
func (g *generations) note(group string, r *kgo.Record) {
	var key kmsg.GroupMetadataKey
	var value kmsg.GroupMetadataValue
	const isGroup = 2 // the version of a key that is not of an offset
	if key.ReadFrom(r.Key) != nil || key.Version != isGroup || key.Group != group ||
		value.ReadFrom(r.Value) != nil || len(value.Members) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen[value.Generation] = true
}

// count returns how many generations with members the group has had.
func (g *generations) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.seen)
}
