package demo

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
)

// quiet discards logs, because the demo itself reports what goes wrong.
var quiet = &sqlstore.Options{Options: once.Options{Logger: slog.New(slog.DiscardHandler)}}

// soon is the redelivery delay after a kill. It is short to keep the demo
// short.
const soon = time.Second

// Operations for effects elsewhere, each with a choice for unknown outcomes.
var (
	// A charge is sent again: the provider honours its key for a day and
	// repeats its first answer.
	charge = &once.Operation[Receipt]{OnUnknown: once.Resend, KeyValidFor: 24 * time.Hour, Policy: once.Policy{Lease: soon}}

	// A letter cannot be looked up and must not be sent twice, so a person
	// decides.
	letter = &once.Operation[bool]{OnUnknown: once.Park, Policy: once.Policy{Lease: soon}}
)

// WithOnce is the shop with once. It survives everything that the demo does to
// it.
func WithOnce(shop *Shop) Service {
	messages := outbox.New(shop.store, nil)
	keep := once.Policy{Lease: soon, KeepOutcome: shop.keep, KeepKey: shop.keep}

	// One commit holds the key of the request, the order, its message and the
	// response.
	place := func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		o, err := readOrder(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return nil
		}
		if err := shop.insert(r.Context(), tx, o); err != nil {
			return err
		}
		m, err := tell(o.ID, o)
		if err != nil {
			return err
		}
		return messages.Put(r.Context(), tx, m)
	}
	caller := func(*http.Request) (string, error) { return "web", nil }

	// A relay publishes committed messages, in this process or another one.
	relay := &outbox.Relay{Store: shop.store, Publisher: shop.publisher, Logger: quiet.Logger, Lease: 2 * publishTime, PublishTime: publishTime}

	// An effect elsewhere: claim the key, charge with the same key on every
	// attempt, record the receipt.
	bill := inbox.Do(shop.store, charge, func(ctx context.Context, key once.Key, m *broker.Message) (Receipt, error) {
		o, err := read(m)
		if err != nil {
			return Receipt{}, once.NotDone(err)
		}
		return shop.charge(ctx, key.String(), o)
	})

	// Rows in this database: one commit holds them and the key of the message.
	credit := inbox.Tx(shop.store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
		o, err := read(m)
		if err != nil {
			return err
		}
		return shop.credit(ctx, tx, o)
	})

	// An effect that cannot be looked up: at most once.
	write := inbox.Do(shop.store, letter, func(ctx context.Context, _ once.Key, m *broker.Message) (bool, error) {
		o, err := read(m)
		if err != nil {
			return false, once.NotDone(err)
		}
		return true, shop.letter(ctx, o)
	})

	consume := func(name string, h inbox.Handler) func(context.Context) error {
		c := &inbox.Consumer{Name: name, Source: shop.source(name), Handler: h, Policy: keep}
		return c.Run
	}
	return Service{
		Place: httponce.HandlerTx(shop.store, caller, place, &httponce.Options{Policy: once.Policy{KeepOutcome: shop.keep, KeepKey: shop.keep}}),
		Run:   []func(context.Context) error{relay.Run, consume("billing", bill), consume("points", credit), consume("letters", write)},
	}
}
