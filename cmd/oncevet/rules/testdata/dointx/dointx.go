// Package dointx guards effects inside transactions.
package dointx

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/sqlstore"
)

type shop struct {
	store       *sqlstore.Store
	pay, charge *once.Operation[string]
}

func (s *shop) inside(ctx context.Context) (string, error) {
	work := s.pay.For("1")
	return once.DoTx(ctx, s.store, work, func(ctx context.Context, tx *sql.Tx) (string, error) {
		c, err := once.Do(ctx, s.store, s.charge.Under(work.Key()), s.chargeCard) // want `dointx: once.Do inside once.DoTx returns once.ErrInTx: call it before the transaction`
		if err != nil {
			return "", err
		}
		if _, err := once.DoTx(ctx, s.store, s.charge.For("2"), s.rows); err != nil { // want `dointx: once.DoTx inside once.DoTx returns once.ErrInTx: use once.InTx with tx`
			return "", err
		}
		return once.InTx(ctx, s.store, tx, s.charge.For("3"), func(ctx context.Context) (string, error) { return c, nil })
	})
}

func (s *shop) consumer() inbox.Handler {
	return inbox.Tx(s.store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
		return s.doCharge(ctx, m.ID) // want `dointx: once.Do \(in doCharge\) inside inbox.Tx returns once.ErrInTx`
	})
}

func (s *shop) doCharge(ctx context.Context, id string) error {
	_, err := once.Do(ctx, s.store, s.charge.For(id), s.chargeCard)
	return err
}

func (s *shop) before(ctx context.Context) (string, error) {
	if err := s.doCharge(ctx, "1"); err != nil {
		return "", err
	}
	return once.DoTx(ctx, s.store, s.pay.For("1"), s.rows)
}

// A step may be a transaction.
func (s *shop) step(ctx context.Context) (string, error) {
	return once.Do(ctx, s.store, s.charge.For("1"), func(ctx context.Context, key once.Key) (string, error) {
		return once.DoTx(ctx, s.store, s.pay.Under(key), s.rows)
	})
}

func (s *shop) chargeCard(context.Context, once.Key) (string, error) { return "", nil }
func (s *shop) rows(context.Context, *sql.Tx) (string, error)        { return "", nil }
