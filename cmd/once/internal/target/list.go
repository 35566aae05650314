package target

import (
	"context"

	"github.com/effectively-once/once"
)

// List returns records, and the key behind which to go on; the zero Key if there is nothing more.
func (t *Target) List(ctx context.Context, q once.Query) (recs []once.Record, next once.Key, err error) {
	recs, err = t.Store.List(ctx, q)
	if err == nil && len(recs) == q.Limit {
		next = recs[len(recs)-1].Key
	}
	return recs, next, err
}
