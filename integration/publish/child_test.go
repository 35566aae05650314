//go:build linux

package publish

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// plan is the configuration of a process.
type plan struct {
	Base engines.Place
	Role string // a relay, a producer, or a bridge
	Name string // of the process
	Seed uint64

	Press string // the URL that a relay publishes to
	Then  store.Ending
	Lease time.Duration
	Waits bool // in front of its first Sent, a relay waits for a line of its input, and says what came of it

	Work workload // of a producer

	Link link   // of a bridge
	Dies string // where a bridge kills itself; empty: nowhere
}

// The roles of processes.
const (
	roleRelay    = "relay"
	roleProducer = "producer"
	roleBridge   = "bridge"
)

// The lines that a process prints.
const (
	saysReady = "ready"
	saysSends = "sends"
	saysSent  = "sent"
)

// TestMain also makes this binary the program of the processes.
func TestMain(m *testing.M) { fleet.Main(m, work) }

// work carries out a plan.
func work(ctx context.Context, p plan, lines <-chan struct{}) error {
	w, err := open(p.Base)
	if err != nil {
		return err
	}
	defer w.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("process", p.Name)
	fmt.Println(saysReady)
	switch p.Role {
	case roleRelay:
		return p.relay(w, logger, lines).Run(ctx)
	case roleProducer:
		return p.produce(ctx, w, logger)
	case roleBridge:
		return p.bridge(ctx, w, logger)
	}
	return fmt.Errorf("no such role: %q", p.Role)
}

// startFleet starts processes of a plan, each with a name and a seed of its own.
func startFleet(t testing.TB, p plan, size int) *fleet.Fleet {
	t.Helper()
	return fleet.Keep(t, size, func(n int) any {
		p := p
		p.Name, p.Seed = fmt.Sprint(p.Role, n), p.Seed+uint64(n)
		return p
	})
}

// relay returns the relay of a plan.
func (p plan) relay(w *world, logger *slog.Logger, lines <-chan struct{}) *outbox.Relay {
	s := w.store
	if p.Waits {
		s = gated(s, waiting(lines))
	}
	return quick(&outbox.Relay{Store: s, Publisher: newCourier(p.Press, p.Name), Then: p.Then, Lease: p.Lease, Batch: 20,
		Logger: logger})
}

// quick makes a relay retry soon and without a limit.
func quick(r *outbox.Relay) *outbox.Relay {
	r.PublishTime = r.Lease * 2 / 5
	r.Retry = outbox.Retry{Attempts: 10_000, First: 20 * time.Millisecond, Limit: 200 * time.Millisecond}
	r.StopTime = 10 * time.Second
	return r
}

// waiting waits for a line before the first Sent.
func waiting(lines <-chan struct{}) gate {
	first := true
	return func(send func() error) error {
		if !first {
			return send()
		}
		first = false
		fmt.Println(saysSends)
		<-lines
		return send()
	}
}

// gate is called around each Sent of a store.
type gate func(send func() error) error

// gated returns a store with a gate.
func gated(s store.Relayable, g gate) store.Relayable { return gatedTable{s.(ringing), g} }

// ringing is what all stores here have in common.
type ringing interface {
	store.Relayable
	store.Bell
}

type gatedTable struct {
	ringing
	gate gate
}

// As finds the log of a store that has one, with the gate.
func (s gatedTable) As(target any) bool {
	log, isLog := target.(*store.OutboxLog)
	if !isLog {
		return false
	}
	inner, ok := once.As[store.OutboxLog](s.ringing)
	*log = gatedLog{inner, s.gate}
	return ok
}

func (s gatedTable) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	err = s.gate(func() (err error) {
		changed, err = s.ringing.Sent(ctx, relay, ms, then)
		if err == nil {
			fmt.Println(saysSent, changed)
		}
		return err
	})
	return changed, err
}

type gatedLog struct {
	store.OutboxLog
	gate gate
}

func (l gatedLog) TailOutbox(ctx context.Context) (store.OutboxTail, error) {
	t, err := l.OutboxLog.TailOutbox(ctx)
	if t == nil || err != nil {
		return t, err
	}
	return gatedTail{t, l.gate}, nil
}

type gatedTail struct {
	store.OutboxTail
	gate gate
}

func (t gatedTail) Sent(ctx context.Context, ms []store.Outgoing, then store.Ending) error {
	return t.gate(func() error {
		err := t.OutboxTail.Sent(ctx, ms, then)
		fmt.Println(saysSent, err)
		return err
	})
}

var _ broker.Publisher = (*courier)(nil)
