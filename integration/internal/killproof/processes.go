//go:build linux

package killproof

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/nats-io/nats.go"
)

// Plan is what a process does.
type Plan struct {
	Role  string
	Store string // for Setting.Open
	NATS  string
	Seed  uint64
	Lease time.Duration
	Pause time.Duration
	From  int    // the first unit of a producer
	Dies  string // where it kills itself; empty: nowhere
	At    int    // the how manieth time that it is there
}

// The roles of processes.
const (
	roleProducer = "producer"
	roleRelay    = "relay"
	roleConsumer = "consumer"
)

// Where processes kill themselves.
const (
	diesInWork      = "in the work"
	diesAfterCommit = "between the commit and the relay"
	diesHalfway     = "with a part of a batch published"
	diesBeforeSent  = "between publishing and writing that down"
	diesAfterSent   = "when that is written down"
	diesInHandler   = "in the handler"
	diesBeforeAck   = "between the commit and the ack"
)

// What processes have in common on the server.
const (
	stream = "orders"
	topic  = "orders.all"
	group  = "till"
	told   = "told" // the subject for the numbers of units that are known to be done
	died   = "died" // the subject for places where processes have died
	calm   = "calm" // the subject by which the test tells processes that they live on
)

// Lines are what units and lists are in.
var Lines = []string{"k0", "k1", "k2", "k3", "k4"}

// LineOf returns the line that a key's ID, the name of a list or a body begins
// with.
func LineOf(name string) string {
	line, _, _ := strings.Cut(name, "/")
	return line
}

// The lists of a line.
const (
	madeList    = "/made"
	handledList = "/handled"
)

// Lists returns the names of all lists, for stores that have to make them.
func Lists() (names []string) {
	for _, line := range Lines {
		names = append(names, line+madeList, line+handledList)
	}
	return names
}

// unit is a unit of work.
type unit struct {
	number int
	line   string
	doomed bool // it always fails, after it has put its messages
}

func unitOf(n int) unit { return unit{n, Lines[n%len(Lines)], n%9 == 4} }

// messages returns the messages that an attempt at a unit puts. Most are ordered
// with those of their line. Their bodies begin with the line and a slash.
func (u unit) messages(attempt string) (ms []*broker.Message) {
	for i := range 1 + u.number%3 {
		m := &broker.Message{ID: fmt.Sprintf("%d-%d", u.number, i), Topic: topic, OrderingKey: u.line,
			Body: []byte(u.line + "/" + attempt)}
		if (u.number+i)%4 == 0 {
			m.OrderingKey = ""
		}
		ms = append(ms, m)
	}
	return ms
}

// entryOf returns the entry of a unit in the list of what was made.
func entryOf(u unit, attempt string) string { return strconv.Itoa(u.number) + " " + attempt }

// madeBy reads an entry.
func madeBy(entry string) (u unit, attempt string) {
	number, attempt, _ := strings.Cut(entry, " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		panic(err) // it is from entryOf
	}
	return unitOf(n), attempt
}

var errDoomed = errors.New("this fails on purpose")

// worker does units.
type worker[Tx any] struct {
	place  *Place[Tx]
	outbox *outbox.Outbox[Tx]
	op     *once.Operation[string]
}

func newWork[Tx any](p *Place[Tx]) *worker[Tx] {
	return &worker[Tx]{p, outbox.New(p.Store, nil), &once.Operation[string]{Name: "order"}}
}

// do does a unit, unless it is done. It calls moment when the transaction is
// ready for its commit.
func (w *worker[Tx]) do(ctx context.Context, u unit, moment func()) error {
	answer := "made " + strconv.Itoa(u.number)
	got, err := once.DoTx(ctx, w.place.Store, w.op.For(u.line+"/"+strconv.Itoa(u.number)), func(ctx context.Context, tx Tx) (string, error) {
		attempt := crand.Text() // what of the others is published did not commit
		if err := w.place.Note(ctx, tx, u.line+madeList, entryOf(u, attempt)); err != nil {
			return "", err
		}
		if err := w.outbox.Put(ctx, tx, u.messages(attempt)...); err != nil {
			return "", err
		}
		if moment(); u.doomed {
			return "", errDoomed
		}
		return answer, nil
	})
	if err == nil && got != answer {
		return fmt.Errorf("unit %d: the answer is %q", u.number, got)
	}
	return err
}

// mortal kills its process.
type mortal struct {
	nc    *nats.Conn
	place string
	at    int64
	n     atomic.Int64
	lives atomic.Bool // from now on
}

// pass is called at a place.
func (m *mortal) pass(place string) {
	if place != m.place || m.n.Add(1) != m.at || m.lives.Load() {
		return
	}
	// So that the test knows that somebody died here.
	//nolint:txpublish // the message is about this process, whatever becomes of the transaction
	if err := errors.Join(m.nc.Publish(died, []byte(place)), m.nc.FlushTimeout(proof.Patience)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	fleet.DieNow()
}

// Main runs tests, or the process that one of them has started.
func Main[Tx any](m *testing.M, open func(address string) (*Place[Tx], error)) {
	if !fleet.IsProcess() {
		logtest.Main(m)
		return
	}
	fleet.Main(m, func(ctx context.Context, p Plan, _ <-chan struct{}) error { return Work(ctx, p, open) })
}

// Work carries out a plan.
func Work[Tx any](ctx context.Context, p Plan, open func(address string) (*Place[Tx], error)) error {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	place, err := open(p.Store)
	if err != nil {
		return err
	}
	js, err := offices.DialNATS(p.NATS)
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	b := natsbroker.New(js, &natsbroker.Options{DuplicateWindow: -1, ReplyWait: time.Second})
	m := &mortal{nc: js.Conn(), place: p.Dies, at: int64(p.At)}
	if _, err := m.nc.Subscribe(calm, func(*nats.Msg) { m.lives.Store(true) }); err != nil {
		return err
	}
	switch p.Role {
	case roleProducer:
		return produce(ctx, p, place, m)
	case roleRelay:
		relay := &outbox.Relay{Store: relayable{place.Store, place.Store, m}, Publisher: publisher{b.Publisher(), m}, Batch: 5,
			Lease: p.Lease, PublishTime: p.Lease / 3, Poll: 50 * time.Millisecond, StopTime: 10 * time.Second,
			Retry: outbox.Retry{Attempts: 10_000, First: 20 * time.Millisecond, Limit: 200 * time.Millisecond}}
		return relay.Run(ctx)
	case roleConsumer:
		return consumer(p, place, b, m).Run(ctx)
	}
	return fmt.Errorf("no such role: %q", p.Role)
}

// produce does one unit after another.
func produce[Tx any](ctx context.Context, p Plan, place *Place[Tx], m *mortal) error {
	w, chance := newWork(place), rand.New(rand.NewPCG(p.Seed, 5))
	for n := p.From; ctx.Err() == nil; n++ {
		u := unitOf(n)
		for err := errors.New("not yet"); err != nil && ctx.Err() == nil; {
			call, cancel := context.WithTimeout(ctx, 10*time.Second)
			err = w.do(call, u, func() { m.pass(diesInWork) })
			cancel()
			if u.doomed {
				if !errors.Is(err, errDoomed) {
					slog.Warn("a unit that is doomed", "unit", n, "error", err)
				}
				break
			}
			if err != nil {
				slog.Warn("a unit failed", "unit", n, "error", err)
			}
		}
		if u.doomed || ctx.Err() != nil {
			continue
		}
		if m.pass(diesAfterCommit); m.nc.Publish(told, []byte(strconv.Itoa(n))) != nil {
			return errors.New("the connection to NATS is closed")
		}
		proof.Pause(time.Duration(chance.Int64N(int64(p.Pause))))
	}
	return m.nc.FlushTimeout(proof.Patience)
}

// relayable is the outbox as a relay sees it that dies around the end of
// messages.
type relayable struct {
	store.Relayable
	whole once.Store
	dies  *mortal
}

// Unwrap returns the store, for its other capabilities.
func (r relayable) Unwrap() once.Store { return r.whole }

func (r relayable) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	r.dies.pass(diesBeforeSent)
	n, err := r.Relayable.Sent(ctx, relay, ms, then)
	if err == nil {
		r.dies.pass(diesAfterSent)
	}
	return n, err
}

// publisher dies with a part of its messages published.
type publisher struct {
	broker.Publisher
	dies *mortal
}

func (p publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	if p.dies.place == diesHalfway && len(ms) > 1 {
		_ = p.Publisher.Publish(ctx, ms[:len(ms)/2])
		p.dies.pass(diesHalfway)
	}
	return p.Publisher.Publish(ctx, ms)
}

// consumer notes messages in the list of their line.
func consumer[Tx any](p Plan, place *Place[Tx], b *natsbroker.Broker, m *mortal) *inbox.Consumer {
	return &inbox.Consumer{Name: "till", Source: source{b.Consumer(stream, group), m}, StopTime: 5 * time.Second,
		Policy: once.Policy{Lease: p.Lease}, Concurrency: 4,
		Retry: inbox.Retry{First: 10 * time.Millisecond, Limit: 100 * time.Millisecond, Attempts: 10_000},
		Key:   func(m *broker.Message) (string, error) { return LineOf(string(m.Body)) + "/" + m.ID, nil },
		Handler: inbox.Tx(place.Store, func(ctx context.Context, tx Tx, msg *broker.Message) error {
			if err := place.Note(ctx, tx, LineOf(string(msg.Body))+handledList, msg.ID); err != nil {
				return err
			}
			m.pass(diesInHandler)
			return nil
		})}
}

// source has sessions that die before an Ack.
type source struct {
	broker.Source
	dies *mortal
}

func (s source) Open(ctx context.Context, window int) (broker.Session, error) {
	in, err := s.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	return session{in, s.dies}, nil
}

type session struct {
	broker.Session
	dies *mortal
}

func (s session) Ack(ctx context.Context, ds []broker.Delivery) error {
	s.dies.pass(diesBeforeAck)
	return s.Session.Ack(ctx, ds)
}
