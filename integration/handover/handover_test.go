//go:build go1.25

package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// watched is a store that counts the calls by which messages leave the outbox.
type watched struct {
	*memstore.Store
	options *once.Options
	mu      sync.Mutex
	calls   map[string]int

	before    func(ms []store.Outgoing, rows [][]store.Shelved) error // called by HandOver
	replyLost int                                                     // the number of that HandOver
}

func watch() *watched {
	return &watched{Store: memstore.New(nil), options: once.Options{}.Ready(), calls: make(map[string]int)}
}

func (w *watched) Options() *once.Options { return w.options }

func (w *watched) count(call string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[call]++
	return w.calls[call]
}

func (w *watched) Shelve(ctx context.Context, ms []store.Shelved) error {
	w.count("Shelve")
	return w.Store.Shelve(ctx, ms)
}

func (w *watched) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	w.count("Sent")
	return w.Store.Sent(ctx, relay, ms, then)
}

func (w *watched) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, rows [][]store.Shelved,
	then store.Ending) ([]bool, error) {

	n := w.count("HandOver")
	if w.before != nil {
		if err := w.before(ms, rows); err != nil {
			return nil, err
		}
	}
	handed, err := w.Store.HandOver(ctx, relay, ms, rows, then)
	if n == w.replyLost {
		return nil, errors.New("no reply")
	}
	return handed, err
}

// wantCalls checks the calls so far.
func (w *watched) wantCalls(t testing.TB, want string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := strings.TrimPrefix(fmt.Sprint(w.calls), "map"); got != want {
		t.Errorf("the store got %s, want %s", got, want)
	}
}

func (w *watched) put(t testing.TB, ms ...*broker.Message) {
	t.Helper()
	tx := w.Begin()
	proof.Must(t, outbox.New(w, nil).Put(t.Context(), tx, ms...))
	proof.Must(t, tx.Commit())
}

// relay runs a relay until the end of the test.
func relay(t testing.TB, r *outbox.Relay) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r.Stats, r.Logger = new(outbox.Stats), slog.New(slog.NewTextHandler(io.Discard, nil))
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		proof.Must(t, <-done)
	})
}

// outgoing returns the IDs of the messages in the outbox in a state.
func (w *watched) outgoing(t testing.TB, state store.OutgoingState) (ids []string) {
	t.Helper()
	ms, err := w.Store.Outgoing(context.Background(), store.OutgoingQuery{State: state})
	proof.Must(t, err)
	for _, m := range ms {
		ids = append(ids, m.Message.ID)
	}
	return ids
}

// queued returns the IDs of the messages in a queue.
func (w *watched) queued(t testing.TB, consumer string) (ids []string) {
	t.Helper()
	rows, err := w.Shelved(context.Background(), store.ShelfQuery{Consumer: store.QueueOf(consumer)})
	proof.Must(t, err)
	for _, row := range rows {
		ids = append(ids, row.Key)
	}
	return ids
}

func want(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// A relay of the broker's own store publishes and ends messages in one commit, and
// wakes the sessions.
func TestMessagesAreHandedOverInOneCommit(t *testing.T) {
	for name, then := range map[string]store.Ending{"deleted": store.Delete, "kept": store.Keep} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch()
				b := storebroker.New(w, &storebroker.Options{Poll: time.Hour})
				billing, letters := open(t, b, "billing"), open(t, b, "letters")
				r := &outbox.Relay{Store: w, Publisher: b.Publisher(), Then: then}
				relay(t, r)
				begun := time.Now()
				w.put(t, message("1", "k"), message("2", "l"))
				for _, s := range []broker.Session{billing, letters} {
					want(t, "a consumer got", ids(receive(t, s, 2)), "1", "2")
				}
				if took := time.Since(begun); took > time.Second {
					t.Errorf("they came after %v", took)
				}
				synctest.Wait()
				w.wantCalls(t, "[HandOver:1]")
				want(t, "the outbox has", w.outgoing(t, store.Pending))
				if kept := w.outgoing(t, store.Published); (len(kept) == 2) != (then == store.Keep) {
					t.Errorf("%q are kept", kept)
				}
				if n := r.Stats.Published.Load(); n != 2 {
					t.Errorf("%d are counted as published", n)
				}
			})
		})
	}
}

// sealed returns the options of a process that seals what it stores.
func sealed(t testing.TB) *once.Options {
	ring, err := once.NewRing(once.Secret{ID: "s", Bytes: bytes.Repeat([]byte("s"), 32)})
	proof.Must(t, err)
	return once.Options{Sealing: once.Sealing{Ring: ring}}.Ready()
}

// What is handed over is sealed again, for its queue.
func TestMessagesAreHandedOverSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.options = sealed(t)
		b := storebroker.New(w, nil)
		s := open(t, b, "billing")
		w.before = func(_ []store.Outgoing, rows [][]store.Shelved) error {
			if m := rows[0][0].Message; bytes.Contains(m.Body, []byte("body of")) {
				t.Errorf("the row has the body %q", m.Body)
			}
			return nil
		}
		w.put(t, message("1", ""))
		relay(t, &outbox.Relay{Store: w, Publisher: b.Publisher()})
		if m := receive(t, s, 1)[0].Message; string(m.Body) != "body of 1" {
			t.Errorf("got the body %q", m.Body)
		}
		w.wantCalls(t, "[HandOver:1]")
	})
}

// around is a wrapper of a user, which sees some calls and is not bypassed.
type around struct {
	*watched
	store.Shelf
}

func (a around) Shelve(ctx context.Context, ms []store.Shelved) error {
	return a.watched.Shelve(ctx, ms)
}

type sender struct{ store.Relayable }

type publisher struct{ broker.Publisher }

// Where a call would be bypassed that somebody watches, there are two commits.
func TestWrappersSeeTheirCalls(t *testing.T) {
	same := func(p broker.Publisher) broker.Publisher { return p }
	type parts struct {
		relayed  store.Relayable
		carrying once.Store
		wrapped  func(broker.Publisher) broker.Publisher
	}
	for name, wrap := range map[string]func(w *watched) parts{
		"another store": func(w *watched) parts {
			return parts{w, &watched{Store: w.Store, options: w.options, calls: w.calls}, same}
		},
		"a wrapped outbox": func(w *watched) parts { return parts{sender{w}, w, same} },
		"a wrapped shelf":  func(w *watched) parts { return parts{w, shelving{w, around{w, w}}, same} },
		"a wrapped publisher": func(w *watched) parts {
			return parts{w, w, func(p broker.Publisher) broker.Publisher { return publisher{p} }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch()
				of := wrap(w)
				b := storebroker.New(of.carrying, nil)
				s := open(t, b, "billing")
				w.put(t, message("1", ""))
				relay(t, &outbox.Relay{Store: of.relayed, Publisher: of.wrapped(b.Publisher())})
				want(t, "the consumer got", ids(receive(t, s, 1)), "1")
				synctest.Wait()
				w.wantCalls(t, "[Sent:1 Shelve:1]")
			})
		})
	}
}

// shelving is a store whose shelf is wrapped.
type shelving struct {
	once.Store
	shelf store.Shelf
}

func (s shelving) Unwrap() once.Store { return s.Store }

func (s shelving) As(target any) bool {
	shelf, ok := target.(*store.Shelf)
	if ok {
		*shelf = s.shelf
	}
	return ok
}

// A commit whose reply is lost has happened: nothing is left, and nothing comes
// twice.
func TestAHandOverWhoseReplyIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.replyLost = 1
		b := storebroker.New(w, nil)
		open(t, b, "billing")
		w.put(t, message("1", "k"), message("2", ""), message("3", "k"))
		r := &outbox.Relay{Store: w, Publisher: b.Publisher()}
		relay(t, r)
		time.Sleep(time.Minute)
		want(t, "the outbox has", w.outgoing(t, store.Pending))
		got := w.queued(t, "billing")
		if i, j := slices.Index(got, "1"), slices.Index(got, "3"); i > j {
			t.Errorf("of a key, %q came", got)
		}
		slices.Sort(got)
		want(t, "the queue has", got, "1", "2", "3")
		if n := r.Stats.Failed.Load() + r.Stats.Stuck.Load(); n > 0 {
			t.Errorf("messages are blamed %d times", n)
		}
	})
}

// A message that a person parks while it is published is not published. Later ones
// of its ordering key wait for it, even in its batch. Others are published.
func TestAMessageParkedMeanwhileIsNotPublished(t *testing.T) {
	for name, overtaking := range map[string]bool{"in order": false, "overtaking": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch()
				b := storebroker.New(w, nil)
				open(t, b, "billing")
				park := sync.OnceFunc(func() {
					admin, by := outbox.Admin{Store: w.Store}, outbox.Decision{By: "a person", Reason: "it is wrong"}
					_, err := admin.Park(context.Background(), store.OutgoingQuery{IDs: []string{"1"}}, by)
					proof.Must(t, err)
					want(t, "parked are", w.outgoing(t, store.Stuck), "1")
				})
				w.before = func([]store.Outgoing, [][]store.Shelved) error { park(); return nil }
				w.put(t, message("1", "k"), message("2", "k"), message("3", "l"))
				r := &outbox.Relay{Store: w, Publisher: b.Publisher(), Overtaking: overtaking}
				relay(t, r)
				time.Sleep(time.Minute)
				want(t, "the queue has", w.queued(t, "billing"), "3")
				want(t, "stuck are", w.outgoing(t, store.Stuck), "1")
				if n := r.Stats.Published.Load(); n != 1 {
					t.Errorf("%d are counted as published", n)
				}
			})
		})
	}
}

// A row that the store refuses does not keep its neighbours back.
func TestARefusedRowIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		b := storebroker.New(w, nil)
		open(t, b, "billing")
		w.before = func(_ []store.Outgoing, rows [][]store.Shelved) error {
			for _, row := range slices.Concat(rows...) {
				if row.Key == "2" {
					return fmt.Errorf("%w: not this one", once.ErrInvalid)
				}
			}
			return nil
		}
		w.put(t, message("1", "k"), message("2", "l"), message("3", "m"))
		relay(t, &outbox.Relay{Store: w, Publisher: b.Publisher()})
		time.Sleep(time.Second)
		got := w.queued(t, "billing")
		slices.Sort(got)
		want(t, "the queue has", got, "1", "3")
		time.Sleep(time.Minute) // it may be that the queue is full, until it is looked at
		if stuck, held := w.outgoing(t, store.Stuck), w.outgoing(t, store.Held); len(stuck)+len(held) != 1 {
			t.Errorf("stuck are %q, and held are %q", stuck, held)
		}
	})
}

// A conflict has changed nothing, and the call is repeated.
func TestAHandOverIsRepeatedAfterAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		b := storebroker.New(w, nil)
		s := open(t, b, "billing")
		conflicts := 3
		w.before = func([]store.Outgoing, [][]store.Shelved) error {
			if conflicts--; conflicts >= 0 {
				return fmt.Errorf("%w: a deadlock", once.ErrConflict)
			}
			return nil
		}
		w.put(t, message("1", ""))
		r := &outbox.Relay{Store: w, Publisher: b.Publisher()}
		relay(t, r)
		want(t, "the consumer got", ids(receive(t, s, 1)), "1")
		if n := r.Stats.Refused.Load(); n > 0 {
			t.Errorf("%d calls are counted as refused", n)
		}
		w.wantCalls(t, "[HandOver:4]")
	})
}

// A message that nobody consumes stays in the outbox until there is a consumer.
func TestWhatNobodyConsumesIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		b := storebroker.New(w, nil)
		w.put(t, message("1", "k"), message("2", "k"))
		relay(t, &outbox.Relay{Store: w, Publisher: b.Publisher()})
		time.Sleep(time.Minute)
		w.wantCalls(t, "[]")
		s := open(t, b, "billing")
		first := receive(t, s, 1)
		proof.Must(t, s.Ack(proof.Soon(t), first))
		want(t, "the consumer got", ids(append(first, receive(t, s, 1)...)), "1", "2")
	})
}
