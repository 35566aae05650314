//go:build go1.25

package console

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// A source that never answers is waited for once, and keeps nobody from the others.
func TestASourceThatNeverAnswersIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		var deaf, good atomic.Int64
		end := make(chan struct{})
		for i := range 2 * lagAtOnce {
			register(t, s, fmt.Sprintf("deaf-%02d", i))
		}
		register(t, s, "good")
		c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, func(ctx context.Context, q LagQuestion) (broker.Lag, error) {
			if q.Source == "queue good" {
				return broker.Lag{Messages: good.Add(1)}, nil
			}
			deaf.Add(1)
			<-end // it does not listen to its context
			return broker.Lag{}, nil
		})
		begun := time.Now()
		round(c)
		if took := time.Since(begun); took != 2*lagTime {
			t.Errorf("16 deaf sources took %v, 8 at a time", took)
		}
		b := as(t, c, lookToken)
		b.get("/").is(http.StatusOK).shows("Consumer lag 1+ most for good, 16 not known")
		b.get("/consumers?store=shop").shows("not known: its broker does not answer")
		now.Add(60)
		begun = time.Now()
		round(c)
		if took := time.Since(begun); took != 0 || deaf.Load() != 2*lagAtOnce || good.Load() != 2 {
			t.Errorf("the second round took %v, and asked %d times, and the good one %d times", took, deaf.Load(), good.Load())
		}
		b.get("/consumers?store=shop").shows("not known: its broker has not answered the question before", "2 messages")
		close(end)
		synctest.Wait()
		now.Add(60)
		round(c)
		b.get("/consumers?store=shop").shows("0 messages", "3 messages").hides("not known")
	})
}

// deafPositions is a store that does not answer about positions.
type deafPositions struct{ *memstore.Store }

func (deafPositions) Positions(ctx context.Context, _ string) ([]store.Position, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Who looks for what is down is not sent to a broker that is up.
func TestAStoreThatDoesNotTellPositionsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := deafPositions{memstore.New(nil)}
		register(t, s, "mail", "bill")
		c, _ := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, LagOf(keptLog{uncounted{name: "queue mail"}, 100}, heap{name: "queue bill", lag: broker.Lag{Messages: 5}}))
		begun := time.Now()
		round(c)
		if took := time.Since(begun); took != lagTime {
			t.Errorf("a round took %v", took)
		}
		b := as(t, c, lookToken)
		b.get("/consumers?store=shop").shows("not known: the store of its positions does not answer", "5 messages").hides("its broker does not answer")
		b.get("/").shows("Consumer lag 5+ most for bill, 1 not known")
	})
}

// A console asks from its start, so that the first who looks sees it.
func TestTheLagIsAskedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		register(t, s, "mail")
		var asked atomic.Int64
		c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Lag: func(context.Context, LagQuestion) (broker.Lag, error) {
			return broker.Lag{Messages: asked.Add(1)}, nil
		}})
		synctest.Wait()
		b := as(t, c, lookToken)
		b.get("/").shows("Consumer lag 1 most for mail")
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		if n := asked.Load(); n < 15 || n > 21 {
			t.Errorf("asked %d times in five minutes in which somebody may look", n)
		}
		begun := asked.Load()
		time.Sleep(5 * time.Minute)
		if n := asked.Load() - begun; n < 4 || n > 6 {
			t.Errorf("asked %d times in five minutes in which nobody looks", n)
		}
	})
}

func TestLagsAreAskedSideBySideUpToALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		for i := range 3 * lagAtOnce {
			register(t, s, fmt.Sprintf("c-%02d", i))
		}
		var at, most atomic.Int64
		c, _ := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, func(context.Context, LagQuestion) (broker.Lag, error) {
			n := at.Add(1)
			defer at.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			time.Sleep(time.Second) // in fake time
			return broker.Lag{Messages: 1}, nil
		})
		begun := time.Now()
		round(c)
		if took := time.Since(begun); took != 3*time.Second || most.Load() != lagAtOnce {
			t.Errorf("%d sources took %v, %d at the same time", 3*lagAtOnce, took, most.Load())
		}
	})
}

// However many sources there are and however slow they are, a round takes no more
// than half a minute. Those that did not answer come last the next time.
func TestARoundOfLagsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		const slow = 10 * lagAtOnce
		for i := range slow {
			register(t, s, fmt.Sprintf("slow-%02d", i))
		}
		register(t, s, "zip")
		var zip atomic.Int64
		c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, func(ctx context.Context, q LagQuestion) (broker.Lag, error) {
			if q.Source == "queue zip" {
				zip.Add(1)
				return broker.Lag{Messages: 7}, nil
			}
			<-ctx.Done()
			return broker.Lag{}, ctx.Err()
		})
		begun := time.Now()
		round(c)
		if took := time.Since(begun); took != lagRound || zip.Load() != 0 {
			t.Errorf("a round took %v", took)
		}
		b := as(t, c, lookToken)
		b.get("/consumers?store=shop").shows("other sources took so long", "its broker does not answer")
		now.Add(60)
		round(c)
		if zip.Load() != 1 {
			t.Error("the source that answers was not asked again")
		}
		b.get("/").shows("Consumer lag 7+ most for zip, 80 not known")
	})
}

// The history is that of an hour.
func TestTheHistoryOfTheLagIsBounded(t *testing.T) {
	s := memstore.New(nil)
	register(t, s, "mail")
	c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, (&replies{of: map[string]func(context.Context) (broker.Lag, error){
		"queue mail": messages(12, 0)}}).lag)
	for range 400 {
		c.sampler.watch(c.now())
		round(c)
		now.Add(15)
	}
	if _, past := c.lags.store(0); len(past) != 241 {
		t.Errorf("there are %d samples of an hour", len(past))
	}
}
