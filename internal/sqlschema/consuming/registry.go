package consuming

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/sqlschema"
)

// Consumer is store.Consumer.
type Consumer struct {
	Name   string
	Source string
	Keys   string
	Seen   time.Duration
}

// Register is that of store.Registry. It needs a transaction.
func (t *Tables[M, S]) Register(ctx context.Context, q Querier, c Consumer) (before Consumer, err error) {
	keys := cmp.Or(c.Keys, c.Name)
	if err := checkNames("Name", c.Name, "Keys", keys, "Source", c.Source); err != nil {
		return before, err
	}
	p := sqlschema.Params{"row": t.uuid("consumer", c.Name), "name": c.Name, "source": c.Source}
	for _, st := range []sqlschema.Statement{t.sql.meet, t.sql.lock} {
		if _, err := t.exec(ctx, q, st, p); err != nil {
			return before, err
		}
	}
	found, err := t.consumers(ctx, q, t.sql.known, p)
	if err != nil {
		return before, err
	}
	if len(found) > 0 {
		before = found[0]
	}
	p["keys"] = cmp.Or(before.Keys, keys)
	_, err = t.exec(ctx, q, t.sql.register, p)
	return before, err
}

// Consumers is that of store.Registry.
func (t *Tables[M, S]) Consumers(ctx context.Context, q Querier) ([]Consumer, error) {
	all, err := t.consumers(ctx, q, t.sql.consumers, nil)
	slices.SortFunc(all, func(a, b Consumer) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// consumers leaves out rows that were just made, by a transaction that has not written more yet.
func (t *Tables[M, S]) consumers(ctx context.Context, q Querier, st sqlschema.Statement,
	p sqlschema.Params) (all []Consumer, err error) {

	err = t.each(ctx, q, st, p, func(rows Rows) error {
		var c Consumer
		var at, since int64
		if err := rows.Scan(&c.Name, &c.Source, &c.Keys, &at, &since); err != nil {
			return err
		}
		if at != 0 {
			c.Seen = max(time.Duration(since)*time.Microsecond, 0)
			all = append(all, c)
		}
		return nil
	})
	return all, err
}
