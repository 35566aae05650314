package consuming

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

// Register is that of store.Registry. It needs a transaction. The row of a name is that of its first source, and is locked
// meanwhile; each other source has a row of its own.
func (t *Tables) Register(ctx context.Context, q Querier, c store.Consumer) (before store.Consumer, err error) {
	keys := cmp.Or(c.Keys, c.Name)
	if err := checkNames("Name", c.Name, "Keys", keys, "Source", c.Source, "SharedWith", c.SharedWith); err != nil {
		return before, err
	}
	p := sqlschema.Params{"row": t.uuid("consumer", c.Name), "name": c.Name, "source": c.Source}
	for _, st := range []sqlschema.Statement{t.sql.meet, t.sql.lock} {
		if _, err := t.exec(ctx, q, st, p); err != nil {
			return before, err
		}
	}
	before, err = t.registered(ctx, q, p["row"])
	if err == nil && before.Name != "" && before.Source != c.Source {
		var known bool
		p["row"] = t.sourceRow(c.Name, c.Source)
		if before, known, err = t.atSource(ctx, q, before, c); err == nil && !known && before.Source != c.Source {
			return before, nil
		}
		if err == nil && !known {
			_, err = t.exec(ctx, q, t.sql.meet, p)
		}
	}
	if err != nil {
		return before, err
	}
	p["keys"] = cmp.Or(before.Keys, keys)
	_, err = t.exec(ctx, q, t.sql.register, p)
	return before, err
}

// atSource is what is known of a name at a source that is not its first. It has the source of c if c may be there.
func (t *Tables) atSource(ctx context.Context, q Querier, first, c store.Consumer) (before store.Consumer, known bool, err error) {
	there, err := t.registered(ctx, q, t.sourceRow(c.Name, c.Source))
	if err != nil || there.Name != "" {
		return there, true, err
	}
	shared := first
	if c.SharedWith != first.Source {
		shared, err = t.registered(ctx, q, t.sourceRow(c.Name, c.SharedWith))
	}
	if shared.Name != "" {
		first.Source = c.Source
	}
	return first, false, err
}

func (t *Tables) sourceRow(name, source string) any {
	return t.uuid("consumer at source", name, source)
}

// registered reads a row; the zero store.Consumer is none.
func (t *Tables) registered(ctx context.Context, q Querier, row any) (c store.Consumer, err error) {
	found, err := t.consumers(ctx, q, t.sql.known, sqlschema.Params{"row": row})
	if len(found) > 0 {
		c = found[0]
	}
	return c, err
}

// Consumers is that of store.Registry.
func (t *Tables) Consumers(ctx context.Context, q Querier) ([]store.Consumer, error) {
	all, err := t.consumers(ctx, q, t.sql.consumers, nil)
	slices.SortFunc(all, func(a, b store.Consumer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
	})
	return all, err
}

// consumers leaves out rows that were just made, by a transaction that has not written more yet.
func (t *Tables) consumers(ctx context.Context, q Querier, st sqlschema.Statement,
	p sqlschema.Params) (all []store.Consumer, err error) {

	err = t.each(ctx, q, st, p, func(rows Rows) error {
		var c store.Consumer
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
