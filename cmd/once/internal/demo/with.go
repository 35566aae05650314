package demo

import (
	"context"
	"database/sql"
	"time"

	"github.com/effectively-once/once"
)

// The work is declared once. To pay for an order is one unit of work, and the charge is a step of it.
var (
	pay = &once.Operation[Receipt]{Name: "pay"}

	// A crash may leave a charge of which nobody knows whether it was made. It is sent again: the provider
	// remembers the key for a day, and answers what it answered first. The lease says how soon after a crash.
	charge = &once.Operation[Receipt]{
		Name:        "charge",
		OnUnknown:   once.Resend,
		KeyValidFor: 24 * time.Hour,
		Policy:      once.Policy{Lease: 500 * time.Millisecond},
	}
)

// HandleOnce is the same handler with once. It survives everything that the demo does to it.
func HandleOnce(ctx context.Context, shop *Shop, o Order) error {
	work := pay.For(o.ID)

	// An effect elsewhere: claim, charge with the same key every time, record the receipt.
	receipt, err := once.Do(ctx, shop.store, charge.Under(work.Key()), func(ctx context.Context, key once.Key) (Receipt, error) {
		return shop.charge(ctx, key.String(), o)
	})
	if err != nil {
		return err
	}

	// Rows in this database: one commit holds them and the record that it is done.
	_, err = once.DoTx(ctx, shop.store, work, func(ctx context.Context, tx *sql.Tx) (Receipt, error) {
		return receipt, shop.book(ctx, tx, o, receipt)
	})
	return err
}
