package once_test

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// loud prints the calls of a store. It wraps any store, so whether it lists
// records depends on the store.
type loud struct{ once.Store }

func (s loud) Unwrap() once.Store { return s.Store }

func (s loud) Forget(ctx context.Context, limit int) (int, error) {
	fmt.Println("Forget")
	return s.Store.Forget(ctx, limit)
}

func (s loud) As(target any) bool {
	l, ok := target.(*once.Lister)
	if !ok {
		return false
	}
	inner, ok := once.As[once.Lister](s.Store)
	*l = loudLister{inner}
	return ok
}

type loudLister struct{ once.Lister }

func (l loudLister) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	fmt.Println("List")
	return l.Lister.List(ctx, q)
}

// A wrapper sees the calls that it needs to see. Other capabilities are found in
// the store that it wraps.
func ExampleAs() {
	ctx := context.Background()
	wrapped := loud{memstore.New(nil)}

	_, _ = wrapped.Forget(ctx, 100)
	if lister, ok := once.As[once.Lister](wrapped); ok {
		_, _ = lister.List(ctx, once.RecordQuery{})
	}
	_, ok := once.As[once.TxStore[*memstore.Tx]](wrapped)
	fmt.Println("has transactions:", ok)
	// Output:
	// Forget
	// List
	// has transactions: true
}
