package storetest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

// The reply to COMMIT is lost, so it is not known whether it was applied. DoTx
// finds out, and the work runs once.
func ExampleFaultyTx() {
	store := storetest.FaultyTx(memstore.New(nil),
		storetest.On("Transact", 1, storetest.Fault{Reply: once.ErrOutcomeUnknown}))
	pay := &once.Operation[string]{Name: "pay"}

	receipt, err := once.DoTx(context.Background(), store, pay.For("order 7"),
		func(_ context.Context, tx *memstore.Tx) (string, error) {
			fmt.Println("paying")
			tx.Set("paid", "order 7")
			return "receipt 1", nil
		})
	fmt.Println(receipt, err)
	// Output:
	// paying
	// receipt 1 <nil>
}

// The reply to the first settlement is lost, and the first request to extend a
// lease.
func ExampleFaulty() {
	reset := errors.New("connection reset")
	store := storetest.Faulty(memstore.New(nil), func(c storetest.Call) storetest.Fault {
		switch {
		case c.Method == "Settle" && c.N == 1:
			return storetest.Fault{Reply: reset}
		case c.Method == "Extend" && c.N == 1:
			return storetest.Fault{Request: reset}
		}
		return storetest.Fault{}
	})
	mail := &once.Operation[string]{Name: "mail", OnUnknown: once.Park}
	for range 2 {
		id, err := once.Do(context.Background(), store, mail.For("order 7"), func(context.Context, once.Key) (string, error) {
			fmt.Println("sending")
			return "message 1", nil
		})
		fmt.Println(id, err)
	}
	// Output:
	// sending
	// message 1 <nil>
	// message 1 <nil>
}
