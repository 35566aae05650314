package target

import (
	"context"

	"github.com/effectively-once/once"
)

// List returns records, and the key behind which to go on; the zero Key if there is nothing more.
func (t *Target) List(ctx context.Context, q once.RecordQuery) (recs []once.Record, next once.Key, err error) {
	page, err := t.Store.List(ctx, q)
	for i, rec := range page.Records {
		page.Records[i].Reason = t.Store.Options().Sealing.OpenReason(rec)
	}
	return page.Records, page.Next, err
}
