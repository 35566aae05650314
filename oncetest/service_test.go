package oncetest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/oncetest"
	"github.com/effectively-once/once/store/memstore"
)

// world is a database with a counter for each message.
type world struct {
	db   *memstore.Store
	over <-chan struct{} // closed when the test is over

	mu    sync.Mutex
	sent  []string // received by other systems
	lives map[*oncetest.Process]bool
}

func newWorld(t testing.TB) *world {
	return &world{db: memstore.New(nil), over: t.Context().Done(), lives: make(map[*oncetest.Process]bool)}
}

func (w *world) send(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, what)
}

func (w *world) probe(_ context.Context, ms []*broker.Message) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, m := range ms {
		v, _ := w.db.Value(m.ID)
		n, _ := strconv.Atoi(v)
		fmt.Fprintf(&b, "%s %d\n", m.ID, n)
	}
	slices.Sort(w.sent)
	return b.String() + strings.Join(w.sent, "\n"), nil
}

func add(tx *memstore.Tx, id string) {
	v, _ := tx.Get(id)
	n, _ := strconv.Atoi(v)
	tx.Set(id, strconv.Itoa(n+1))
}

func messages(n int) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, &broker.Message{ID: fmt.Sprint("m", i), Topic: "orders", OrderingKey: fmt.Sprint("k", i%2), Time: time.Now()})
	}
	return ms
}

type run = func(context.Context, *oncetest.Process, *world) error

func caseOf(r run) oncetest.Case[*world] {
	ms := messages(3)
	return oncetest.Case[*world]{Setup: newWorld, Run: r, Messages: ms,
		Probe: func(ctx context.Context, w *world) (string, error) { return w.probe(ctx, ms) }}
}

// loop handles messages one by one, acknowledges those that succeed, and
// returns the others.
func loop(ctx context.Context, p *oncetest.Process, handle func(*broker.Message) error) error {
	for ctx.Err() == nil {
		session, err := p.Source().Open(ctx, 4)
		if err != nil {
			return err
		}
		for err == nil {
			var ds []broker.Delivery
			if ds, err = session.Receive(ctx, 1); err != nil {
				break
			}
			if failed := handle(ds[0].Message); failed != nil {
				err = session.Return(ctx, ds, 0)
			} else {
				err = session.Ack(ctx, ds)
			}
		}
		_ = session.Close(ctx)
	}
	return ctx.Err()
}

// counted is a correct service: it increments a counter for each message, in a
// transaction with the message's key.
func counted(store func(*oncetest.Process, *world) once.TxStore[*memstore.Tx]) run {
	op := &once.Operation[struct{}]{Name: "count"}
	return func(ctx context.Context, p *oncetest.Process, w *world) error {
		s := store(p, w)
		return loop(ctx, p, func(m *broker.Message) error {
			_, err := once.DoTx(ctx, s, op.For(m.ID), func(_ context.Context, tx *memstore.Tx) (none struct{}, err error) {
				add(tx, m.ID)
				p.Step("added")
				return none, nil
			})
			return err
		})
	}
}

func honest(p *oncetest.Process, w *world) once.TxStore[*memstore.Tx] { return oncetest.Store(p, w.db) }

// recorder is a testing.TB that only records failures.
type recorder struct {
	testing.TB
	mu   sync.Mutex
	told []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprintf(format, args...))
}

// Fatalf reports a failure and panics. Prove calls it last in a goroutine.
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(errFatal)
}

var errFatal = errors.New("fatal")

// findings returns what Prove reports about a case, in fake time.
func findings(t *testing.T, c oncetest.Case[*world]) (told []string) {
	t.Helper()
	faketime.Test(t, func(t *testing.T) { told = record(t, c) })
	return told
}

// prove checks that Prove reports nothing about a case.
func prove(t *testing.T, c oncetest.Case[*world]) {
	t.Helper()
	if told := findings(t, c); len(told) > 0 {
		t.Errorf("found in a case without faults:\n%s", strings.Join(told, "\n"))
	}
}

func record(t *testing.T, c oncetest.Case[*world]) (told []string) {
	r := &recorder{TB: t}
	defer func() {
		if p := recover(); p != nil && p != any(errFatal) {
			panic(p)
		}
		told = r.told
	}()
	oncetest.Prove(r, c)
	return r.told
}

// expect checks that a finding has all the words.
func expect(t *testing.T, told []string, words ...string) {
	t.Helper()
	for _, text := range told {
		has := func(word string) bool { return strings.Contains(text, word) }
		if !slices.ContainsFunc(words, func(w string) bool { return !has(w) }) {
			return
		}
	}
	t.Errorf("nothing with the words %q in:\n%s", words, strings.Join(told, "\n"))
}
