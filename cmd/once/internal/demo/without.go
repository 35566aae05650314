package demo

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/trial"
)

// ByHand is the shop as it is usually written: check whether the work was done;
// if not, do it, note it, acknowledge. The message is published after the
// commit.
//
// It survives lost replies, lost acks and crashes in a transaction. It does not
// survive crashes between two systems, concurrent checks, or a broker that is
// down.
func ByHand(shop *Shop) Service {
	place := func(w http.ResponseWriter, r *http.Request) {
		o, err := readOrder(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := shop.placeByHand(r.Context(), o); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}

	bill := func(ctx context.Context, o Order) error {
		if known, err := shop.known(ctx, "charged", o); known || err != nil {
			return err
		}
		receipt, err := shop.charge(ctx, "", o)
		if err != nil {
			return err
		}
		_, err = shop.db.ExecContext(ctx, `INSERT INTO charged (id, charge) VALUES (?, ?)`, o.ID, receipt.ChargeID)
		return err
	}

	credit := func(ctx context.Context, o Order) error {
		if known, err := shop.known(ctx, "credited", o); known || err != nil {
			return err
		}
		return shop.transact(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO credited (id) VALUES (?)`, o.ID); err != nil {
				return err
			}
			return shop.credit(ctx, tx, o)
		})
	}

	write := func(ctx context.Context, o Order) error {
		if known, err := shop.known(ctx, "mailed", o); known || err != nil {
			return err
		}
		if err := shop.letter(ctx, o); err != nil {
			return err
		}
		_, err := shop.db.ExecContext(ctx, `INSERT INTO mailed (id) VALUES (?)`, o.ID)
		return err
	}

	consume := func(name string, handle func(context.Context, Order) error) func(context.Context) error {
		return func(ctx context.Context) error { return consumeByHand(ctx, shop.source(name), handle) }
	}
	return Service{
		Place: http.HandlerFunc(place),
		Run:   []func(context.Context) error{consume("billing", bill), consume("points", credit), consume("letters", write)},
	}
}

func (s *Shop) placeByHand(ctx context.Context, o Order) error {
	if known, err := s.known(ctx, "orders", o); known || err != nil {
		return err
	}
	s.ask(atMissing, "", o, nil)
	err := s.transact(ctx, func(tx *sql.Tx) error { return s.insert(ctx, tx, o) })
	if err != nil {
		return err
	}
	m, err := tell(rand.Text(), o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	return errors.Join(s.publisher.Publish(ctx, []*broker.Message{m})...)
}

// known reports whether a table has a row of the order.
func (s *Shop) known(ctx context.Context, table string, o Order) (known bool, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM `+table+` WHERE id = ?)`, o.ID).Scan(&known)
	return known, err
}

func (s *Shop) transact(ctx context.Context, body func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := body(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// consumeByHand acknowledges handled messages and returns the others, until ctx
// ends.
func consumeByHand(ctx context.Context, from broker.Source, handle func(context.Context, Order) error) error {
	for ctx.Err() == nil {
		session, err := from.Open(ctx, handlers)
		if err != nil {
			trial.Pause(ctx, pollEvery)
			continue
		}
		var running sync.WaitGroup
		for err == nil {
			var ds []broker.Delivery
			ds, err = session.Receive(ctx, handlers)
			for _, d := range ds {
				running.Go(func() { settleByHand(ctx, session, d, handle) })
			}
		}
		running.Wait()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTime)
		_ = session.Close(closing) // unsettled messages are redelivered
		cancel()
	}
	return nil
}

// settleByHand ignores errors of the broker: such messages are redelivered.
func settleByHand(ctx context.Context, session broker.Session, d broker.Delivery, handle func(context.Context, Order) error) {
	o, err := read(d.Message)
	if err == nil {
		err = handle(ctx, o)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTime)
	defer cancel()
	if err != nil {
		_ = session.Return(ctx, []broker.Delivery{d}, 100*time.Millisecond)
		return
	}
	_ = session.Ack(ctx, []broker.Delivery{d})
}
