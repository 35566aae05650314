//go:build linux

package console

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/store"
)

// heap is a source with a lag, at a cluster.
type heap struct {
	broker.Source
	name, cluster string
	lag           func() (broker.Lag, error)
}

func (h heap) Name() string { return h.name }
func (h heap) Location(context.Context) (map[string]string, error) {
	return map[string]string{"cluster": h.cluster}, nil
}
func (h heap) Lag(context.Context) (broker.Lag, error) { return h.lag() }

// join registers a consumer at the queue with its name, at a cluster.
func (s *shop) join(called, cluster string) {
	s.t.Helper()
	registry, ok := once.As[store.Registry](s.store)
	if !ok {
		s.t.Fatal("the store has no registry")
	}
	_, err := registry.Register(s.t.Context(), store.Consumer{Name: called + "-" + cluster,
		Source: store.SourceText("rabbitmq queue "+called, map[string]string{"cluster": cluster})})
	proof.Must(s.t, err)
}

// Somebody sees that messages wait for a consumer that was not started again, finds
// it, and sees that they are gone once it has run. Two queues have one name, and a
// broker does not answer.
func TestMessagesWaitForAConsumerThatDoesNotRun(t *testing.T) {
	axe, err := server.Axe(t.Context())
	proof.Must(t, err)
	s := newShop(t, engines.SQLite, nil)
	for _, at := range [][2]string{{"billing", "north"}, {"billing", "south"}, {"letters", "north"}, {"audit", "north"}} {
		s.join(at[0], at[1])
	}
	s.anHourLater()
	var left, asked atomic.Int64
	left.Store(1204)
	source := func(name, cluster string, lag func() (broker.Lag, error)) broker.Source {
		return heap{name: "rabbitmq queue " + name, cluster: cluster, lag: lag}
	}
	lag := console.LagOf(
		source("billing", "south", func() (broker.Lag, error) { return broker.Lag{}, nil }),
		source("billing", "north", func() (broker.Lag, error) {
			asked.Add(1)
			return broker.Lag{Messages: left.Load(), Oldest: 20 * time.Minute}, nil
		}),
		source("letters", "north", func() (broker.Lag, error) { return broker.Lag{}, errors.New("connection <b>refused</b>") }))
	s.show(func(o *console.Options) { o.Lag = lag })
	for _, scripts := range []bool{true, false} {
		b := s.open(ann)
		if !scripts {
			b.withoutScripts()
		}
		proof.Await(t, "the brokers were asked", func() bool {
			b.visit("/")
			return strings.Contains(b.text(), "Consumer lag")
		})
		b.sees("Something needs a person", "1,204 messages wait for the consumer billing-north", "1,204+", "most for billing-north", "2 not known")
		b.misses("the consumer billing-south", "Nothing needs a person")
		for _, l := range looks {
			if scripts {
				b.looksAt(l)
				b.fits()
				b.picture("lag-overview-" + l.String())
				b.accessible(axe)
			}
		}
		b.visit("/consumers?store=shop")
		b.sees("1,204 messages, the oldest 20 m ago", "0 messages", "not known: connection <b>refused</b>", "not known: nobody can be asked", "not running?")
		for _, l := range looks {
			if scripts {
				b.looksAt(l)
				b.fits()
				b.picture("lag-consumers-" + l.String())
				b.accessible(axe)
			}
		}
		b.follow("main tbody a.row[href*='name=billing-north']")
		b.sees("1,204 messages")
		b.misses("this store does not know")
	}
	before := asked.Load()
	b := s.open(looker)
	for range 10 {
		b.visit("/consumers?store=shop")
	}
	if n := asked.Load() - before; n > 2 {
		t.Errorf("ten pages asked the broker %d times", n)
	}
}
