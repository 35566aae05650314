package janitor_test

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/memstore"
)

// A tenant with two keys gets no third. httponce and grpconce ask by their option Admit; this asks by itself.
func ExampleQuota() {
	ctx := context.Background()
	store := memstore.New(nil)
	pay := &once.Operation[string]{Name: "pay"}
	quota := &janitor.Quota{Store: store, Limit: janitor.Limit{Keys: 2}} // somewhere: go quota.Run(ctx)

	for _, order := range []string{"4711", "4712", "4713", "4711"} {
		work := pay.For(order).In("acme")
		leave, wait := quota.Admit(work.Key())
		if wait > 0 {
			if rec, err := store.Get(ctx, work.Key()); err != nil || rec.Attempt == 0 {
				fmt.Println(order, "has to come back later")
				continue
			}
			leave = func(bool) {}
		}
		var report once.Report
		_, err := once.DoTx(ctx, store, work.Report(&report), func(context.Context, *memstore.Tx) (string, error) {
			return "paid", nil
		})
		leave(err == nil && !report.Replayed)
		fmt.Println(order, "is paid; before:", report.Replayed)
	}
	// Output:
	// 4711 is paid; before: false
	// 4712 is paid; before: false
	// 4713 has to come back later
	// 4711 is paid; before: true
}
