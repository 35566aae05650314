// Package unruly tests that what users return cannot end what runs it.
package unruly

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/errtree/errtreetest"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

// The others go on beside an error of a user that misbehaves.
func TestUnrulyErrorsElsewhere(t *testing.T) {
	for name, bad := range errtreetest.Unruly {
		t.Run(name, func(t *testing.T) {
			s, b := memstore.New(nil), membroker.New(nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()

			t.Run("Lookup", func(t *testing.T) {
				op := &once.Operation[int]{Name: "asked", Lookup: func(context.Context, once.Key) (int, bool, error) { return 0, false, bad }}
				_, err := once.Do(ctx, s, op.For("1"), func(context.Context, once.Key) (int, error) { return 0, io.EOF })
				if !errors.Is(err, once.ErrOutcomeUnknown) {
					t.Fatal(err)
				}
				_, err = once.Do(ctx, s, op.For("1"), func(context.Context, once.Key) (int, error) { return 0, nil })
				if !errors.Is(err, once.ErrOutcomeUnknown) {
					t.Errorf("the next call returned %v, want ErrOutcomeUnknown", err)
				}
				stats := new(reconcile.Stats)
				r := &reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{reconcile.Of(op)}, Stats: stats}
				if err := r.Sweep(ctx); err != nil || stats.Unanswered.Load() != 1 {
					t.Errorf("Sweep returned %v, with %d unanswered", err, stats.Unanswered.Load())
				}
			})
			t.Run("handlers", func(t *testing.T) {
				for kind, handler := range map[string]func(handle func(*broker.Message) error) inbox.Handler{
					"Tx": func(handle func(*broker.Message) error) inbox.Handler {
						return inbox.Tx(s, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error { return handle(m) })
					},
					"Do": func(handle func(*broker.Message) error) inbox.Handler {
						op := &once.Operation[int]{Name: "Do", OnUnknown: once.Resend}
						return inbox.Do(s, op, func(_ context.Context, _ once.Key, m *broker.Message) (int, error) { return 0, handle(m) })
					},
				} {
					running, stop := context.WithCancel(ctx)
					c := &inbox.Consumer{Name: kind, Source: b.Queue(kind), Retry: inbox.Retry{Attempts: 1},
						Handler: handler(func(m *broker.Message) error {
							if m.ID == "bad" {
								return bad
							}
							stop()
							return nil
						})}
					errs := b.Publisher().Publish(ctx, []*broker.Message{{ID: "bad", Topic: kind, OrderingKey: "bad"},
						{ID: "good", Topic: kind, OrderingKey: "good"}})
					if errs != nil {
						t.Fatal(errs)
					}
					if err := c.Run(running); err != nil || ctx.Err() != nil {
						t.Errorf("%s: Run returned %v, %v", kind, err, ctx.Err())
					}
					stop()
				}
			})
			t.Run("publishers", func(t *testing.T) {
				p := &failing{err: bad}
				tx := s.Begin()
				bad, good := &broker.Message{ID: "bad", Topic: "orders"}, &broker.Message{ID: "good", Topic: "orders"}
				if err := outbox.New(s, nil).Put(ctx, tx, bad, good); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				r := &outbox.Relay{Store: s, Publisher: p}
				running, stop := context.WithCancel(ctx)
				p.done = stop
				if err := r.Run(running); err != nil || ctx.Err() != nil {
					t.Errorf("Run returned %v, %v", err, ctx.Err())
				}
			})
			t.Run("requests", func(t *testing.T) {
				h := httponce.HandlerTx(s, func(*http.Request) (string, error) { return "alice", nil },
					func(http.ResponseWriter, *http.Request, *memstore.Tx) error { return bad }, nil)
				r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
				r.Header.Set(httponce.KeyHeader, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code != http.StatusInternalServerError {
					t.Errorf("the answer is %d, want 500", w.Code)
				}
			})
			t.Run("archives", func(t *testing.T) {
				stats := new(janitor.Stats)
				short := &once.Operation[int]{Name: "short", OnUnknown: once.Resend,
					Policy: once.Policy{KeepOutcome: time.Nanosecond, KeepKey: time.Nanosecond}}
				if _, err := once.Do(ctx, s, short.For("1"), func(context.Context, once.Key) (int, error) { return 0, nil }); err != nil {
					t.Fatal(err)
				}
				j := &janitor.Janitor{Store: s, Stats: stats, Archive: func(context.Context, []once.Record) error { return bad }}
				if err := j.Sweep(ctx); err == nil || err.Error() == "" {
					t.Errorf("Sweep returned %v", err)
				}
			})
		})
	}
}

// failing is a publisher that fails for the message "bad". It is done after the
// second try.
type failing struct {
	err  error
	done func()
	n    atomic.Int32
}

func (f *failing) Publish(_ context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	for i, m := range ms {
		if m.ID != "bad" {
			continue
		}
		if errs[i] = f.err; f.n.Add(1) == 2 {
			f.done()
		}
	}
	return errs
}

func (f *failing) Close() error { return nil }
