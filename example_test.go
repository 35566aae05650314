package once_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

type Charge struct{ ID string }

// provider is a payment provider that accepts an idempotency key and can be
// asked.
type provider struct {
	charges map[string]Charge
	down    error
}

func (p *provider) Charge(key string, cents int) (Charge, error) {
	if p.down != nil {
		return Charge{}, p.down
	}
	fmt.Println("charged", cents)
	p.charges[key] = Charge{ID: "ch_1"}
	return p.charges[key], nil
}

func (p *provider) Find(key string) (Charge, bool, error) {
	charge, ok := p.charges[key]
	return charge, ok, nil
}

// An effect in another system: claim the key, act, record the outcome. Every
// duplicate gets the first answer.
func ExampleDo() {
	ctx, store, psp := context.Background(), memstore.New(nil), &provider{charges: map[string]Charge{}}

	charge := &once.Operation[Charge]{Name: "charge", OnUnknown: once.Resend, KeyValidFor: 24 * time.Hour}
	handle := func(orderID string) (Charge, error) {
		return once.Do(ctx, store, charge.For(orderID), func(ctx context.Context, key once.Key) (Charge, error) {
			return psp.Charge(key.String(), 4999)
		})
	}

	fmt.Println(handle("order-1"))
	fmt.Println(handle("order-1")) // delivered twice
	// Output:
	// charged 4999
	// {ch_1} <nil>
	// {ch_1} <nil>
}

// Rows in the database that has the store: one commit holds the key, the
// outcome and the rows.
func ExampleDoTx() {
	ctx, store := context.Background(), memstore.New(nil)

	pay := &once.Operation[string]{Name: "pay"}
	handle := func(orderID string) (string, error) {
		return once.DoTx(ctx, store, pay.For(orderID), func(ctx context.Context, tx *memstore.Tx) (string, error) {
			fmt.Println("paying")
			tx.Set(orderID, "paid")
			return "receipt for " + orderID, nil
		})
	}

	fmt.Println(handle("order-1"))
	fmt.Println(handle("order-1"))
	// Output:
	// paying
	// receipt for order-1 <nil>
	// receipt for order-1 <nil>
}

// A handler that charges, fails and is redelivered skips the charge and
// continues where it failed. A step is a key below a key; the last step is the
// transaction.
func ExampleOperation_Under() {
	ctx, store, psp := context.Background(), memstore.New(nil), &provider{charges: map[string]Charge{}}

	pay := &once.Operation[string]{Name: "pay"}
	charge := &once.Operation[Charge]{Name: "charge", OnUnknown: once.Resend}
	handle := func(orderID string, database error) (string, error) {
		work := pay.For(orderID)
		c, err := once.Do(ctx, store, charge.Under(work.Key()), func(ctx context.Context, key once.Key) (Charge, error) {
			return psp.Charge(key.String(), 4999)
		})
		if err != nil {
			return "", err
		}
		return once.DoTx(ctx, store, work, func(ctx context.Context, tx *memstore.Tx) (string, error) {
			fmt.Println("recording", c.ID)
			tx.Set(orderID, c.ID)
			if database != nil {
				return "", database
			}
			return "receipt", nil
		})
	}

	fmt.Println(handle("order-1", errors.New("disk full")))
	fmt.Println(handle("order-1", nil))
	// Output:
	// charged 4999
	// recording ch_1
	//  disk full
	// recording ch_1
	// receipt <nil>
}

// After a crash between the charge and its record nobody knows what happened.
// An operation with a Lookup asks.
func ExampleOperation_lookup() {
	ctx, store, psp := context.Background(), memstore.New(nil), &provider{charges: map[string]Charge{}}

	charge := &once.Operation[Charge]{
		Name:   "charge",
		Lookup: func(ctx context.Context, key once.Key) (Charge, bool, error) { return psp.Find(key.String()) },
	}
	handle := func(lost error) (Charge, error) {
		return once.Do(ctx, store, charge.For("order-1"), func(ctx context.Context, key once.Key) (Charge, error) {
			c, err := psp.Charge(key.String(), 4999)
			return c, errors.Join(err, lost)
		})
	}

	_, err := handle(errors.New("connection reset")) // charged, and the reply is lost
	fmt.Println(errors.Is(err, once.ErrOutcomeUnknown))
	fmt.Println(handle(nil)) // asked about, not charged again
	// Output:
	// charged 4999
	// true
	// {ch_1} <nil>
}

// A rejection is an answer: it is recorded and replayed, not retried.
func ExampleErrRejected() {
	ctx, store := context.Background(), memstore.New(nil)

	charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Park}
	for range 2 {
		reason, err := once.Do(ctx, store, charge.For("order-1"), func(context.Context, once.Key) (string, error) {
			fmt.Println("asking the bank")
			return "card expired", once.ErrRejected
		})
		fmt.Println(reason, errors.Is(err, once.ErrRejected))
	}
	// Output:
	// asking the bank
	// card expired true
	// card expired true
}

// Only the work knows whether an error means that nothing happened. If it says
// so, the key is free again.
func ExampleNotDone() {
	ctx, store := context.Background(), memstore.New(nil)

	mail := &once.Operation[string]{Name: "receipt-mail", OnUnknown: once.Park}
	dial := errors.New("connection refused")
	for _, err := range []error{once.NotDone(dial), nil} {
		id, err := once.Do(ctx, store, mail.For("order-1"), func(context.Context, once.Key) (string, error) {
			return "mail-1", err
		})
		fmt.Println(id, err)
	}
	// Output:
	// mail-1 connection refused (nothing happened)
	// mail-1 <nil>
}

// A plain error does not say what happened. If OnUnknown is Park, it parks the
// key, and a person decides.
func ExampleMarkNotDone() {
	ctx, store := context.Background(), memstore.New(nil)

	mail := &once.Operation[string]{Name: "receipt-mail", OnUnknown: once.Park}
	send := func(err error) error {
		_, err = once.Do(ctx, store, mail.For("order-1"), func(context.Context, once.Key) (string, error) { return "mail-1", err })
		return err
	}
	fmt.Println(send(errors.New("timeout")))
	fmt.Println(errors.Is(send(nil), once.ErrParked))

	rec, _ := store.Get(ctx, mail.For("order-1").Key())
	fmt.Println(once.MarkNotDone(ctx, store, rec, "the mail server never saw it, OPS-812"))
	fmt.Println(send(nil))
	// Output:
	// once: parked until a person decides: receipt-mail "order-1", attempt 1; the work failed without saying NotDone: timeout
	// true
	// <nil>
	// <nil>
}

// The same key with another input is a mistake of the caller, not new work.
func ExampleWork_Input() {
	ctx, store := context.Background(), memstore.New(nil)

	pay := &once.Operation[string]{Name: "pay", OnUnknown: once.Park}
	for _, body := range []string{`{"cents":4999}`, `{"cents":9999}`} {
		_, err := once.Do(ctx, store, pay.For("order-1").In("tenant-7").Input([]byte(body)),
			func(context.Context, once.Key) (string, error) { return "ok", nil })
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// once: same key, different input: pay "order-1" of "tenant-7", attempt 1; the key was first used for another input
}

// The caller has begun a transaction: claim and complete the key in it.
func ExampleInTx() {
	ctx, store := context.Background(), memstore.New(nil)
	pay := &once.Operation[string]{Name: "pay"}

	tx := store.Begin()
	receipt, err := once.InTx(ctx, store, tx, pay.For("order-1"), func(context.Context) (string, error) {
		tx.Set("order-1", "paid")
		return "receipt", nil
	})
	if err != nil {
		tx.Rollback()
		return
	}
	fmt.Println(receipt, tx.Commit())
	// Output: receipt <nil>
}

// Do inside DoTx is refused, because it would need a second connection while
// the first is held. Call Do before the transaction.
func ExampleErrInTx() {
	ctx, store := context.Background(), memstore.New(nil)
	pay := &once.Operation[string]{Name: "pay"}
	charge := &once.Operation[Charge]{Name: "charge", OnUnknown: once.Resend}

	_, err := once.DoTx(ctx, store, pay.For("order-1"), func(ctx context.Context, tx *memstore.Tx) (string, error) {
		_, err := once.Do(ctx, store, charge.For("order-1"), func(context.Context, once.Key) (Charge, error) { return Charge{}, nil })
		return "", err
	})
	fmt.Println(errors.Is(err, once.ErrInTx))
	// Output: true
}

// Under names one part of the work. Items of a list have their own IDs: use
// For.
func ExampleOperation_For() {
	ctx, store := context.Background(), memstore.New(nil)
	order := once.Key{Operation: "ship", ID: "order-1"}
	label := &once.Operation[string]{Name: "label", OnUnknown: once.Resend}

	for _, parcel := range []string{"parcel-1", "parcel-2"} {
		print := func(context.Context, once.Key) (string, error) { return "label of " + parcel, nil }
		wrong, _ := once.Do(ctx, store, label.Under(order), print)
		right, _ := once.Do(ctx, store, label.For(parcel), print)
		fmt.Println(wrong, "|", right)
	}
	// Output:
	// label of parcel-1 | label of parcel-1
	// label of parcel-1 | label of parcel-2
}

// The type of the store cannot be inferred from a variable of the concrete
// transaction type; the parameter of the closure has it. A field declared as
// once.Store has lost its transactions: declare it as once.TxStore[...].
func ExampleTxStore() {
	ctx := context.Background()
	var store once.TxStore[*memstore.Tx] = memstore.New(nil)

	pay := &once.Operation[string]{Name: "pay"}
	receipt, err := once.DoTx(ctx, store, pay.For("order-1"), func(ctx context.Context, tx *memstore.Tx) (string, error) {
		return "receipt", nil
	})
	fmt.Println(receipt, err)
	// Output: receipt <nil>
}

// MayRetry tells a consumer what to do about an error: retry, and when, or give
// up.
func ExampleMayRetry() {
	for _, err := range []error{once.RetryAfter(3*time.Second, errors.New("rate limited")), once.Permanent(errors.New("no such customer"))} {
		after, ok := once.MayRetry(err)
		fmt.Println(after, ok)
	}
	// Output:
	// 3s true
	// 0s false
}
