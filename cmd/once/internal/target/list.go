package target

import (
	"context"

	"github.com/effectively-once/once"
)

// List returns records and the key after which the next page begins. The zero
// Key means that there are no more. It adds what could not be read to t.Damaged.
func (t *Target) List(ctx context.Context, q once.RecordQuery) (recs []once.Record, next once.Key, err error) {
	lister, err := Need[once.Lister](t, AList)
	if err != nil {
		return nil, next, err
	}
	page, err := lister.List(ctx, q)
	t.Damaged = append(t.Damaged, page.Damaged...)
	for i, rec := range page.Records {
		page.Records[i].Reason = t.Store.Options().Sealing.OpenReason(rec)
	}
	return page.Records, page.Next, err
}
