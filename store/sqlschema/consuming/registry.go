package consuming

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// Registry implements [store.Registry]. SQL stores embed it.
type Registry struct {
	tables *Tables
	db     sqlschema.Access
}

// NewRegistry returns the registry of a store.
func NewRegistry(t *Tables, db sqlschema.Access) Registry { return Registry{t, db} }

// Register records that a consumer is at work now, and returns what was known
// of it before.
func (r Registry) Register(ctx context.Context, c store.Consumer) (before store.Consumer, err error) {
	err = r.db.Transact(ctx, "", func(ctx context.Context, q sqlschema.Querier) error {
		before, err = r.tables.Register(ctx, q, c)
		return err
	})
	return before, err
}

// Consumers returns all registered consumers in the order of their names.
func (r Registry) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	err = r.db.Read(ctx, func(q sqlschema.Querier) error {
		all, err = r.tables.Consumers(ctx, q)
		return err
	})
	return all, err
}

// Register implements Register, inside a transaction. The row of a name is that
// of its first source. Register locks it. Each other source has a row of its
// own.
func (t *Tables) Register(ctx context.Context, q sqlschema.Querier, c store.Consumer) (before store.Consumer, err error) {
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
	before, err = t.registered(ctx, q, c.Name, p["row"])
	if err != nil {
		return before, err
	}
	if before.Name != "" {
		there, ok := store.MatchSource(before.Source, c.Source)
		if !ok {
			var known bool
			if before, known, err = t.atSource(ctx, q, before, c, p); err != nil {
				return before, err
			}
			if there, ok = store.MatchSource(before.Source, c.Source); !ok {
				return before, nil
			}
			if !known {
				if _, err = t.exec(ctx, q, t.sql.meet, p); err != nil {
					return before, err
				}
			}
		}
		before.Source, p["source"] = there, there
	}
	p["keys"] = cmp.Or(before.Keys, keys)
	_, err = t.exec(ctx, q, t.sql.register, p)
	return before, err
}

// atSource returns what is known of a name at a source that is not its first,
// and puts the row of that source into p. The source that it returns matches
// that of c if c may be there.
func (t *Tables) atSource(ctx context.Context, q sqlschema.Querier, first, c store.Consumer, p sqlschema.Params) (before store.Consumer, known bool, err error) {
	there, row, err := t.find(ctx, q, c.Name, c.Source)
	p["row"] = row
	if err != nil || there.Name != "" {
		return there, true, err
	}
	shared := first
	if _, ok := store.MatchSource(first.Source, c.SharedWith); !ok && c.SharedWith != "" {
		shared, _, err = t.find(ctx, q, c.Name, c.SharedWith)
	} else if !ok {
		shared = store.Consumer{}
	}
	if shared.Name != "" {
		first.Source = c.Source
	}
	return first, false, err
}

// find looks for a source of a name that is not its first one. If there is
// none, row is free for it.
func (t *Tables) find(ctx context.Context, q sqlschema.Querier, name, at string) (c store.Consumer, row any, err error) {
	plain, _ := store.SplitSource(at)
	for n := 0; ; n++ { // sources of one name at several clusters
		row = t.uuid("consumer at source", name, plain, strconv.Itoa(n))
		if c, err = t.registered(ctx, q, name, row); err != nil || c.Name == "" {
			return c, row, err
		}
		if _, ok := store.MatchSource(c.Source, at); ok {
			return c, row, nil
		}
	}
}

// registered reads a row of a name. It returns the zero store.Consumer if there is
// none. If only the time of the row is damaged, Seen is 0.
func (t *Tables) registered(ctx context.Context, q sqlschema.Querier, name string, row any) (c store.Consumer, err error) {
	found, err := t.consumers(ctx, q, t.sql.known, sqlschema.Params{"row": row})
	if err != nil || len(found) == 0 {
		return c, err
	}
	c = found[0]
	if err := misplaced(c, name); err != nil {
		return store.Consumer{}, err
	}
	c.Damaged = nil
	return c, nil
}

// misplaced returns why a row that was found by a name cannot be used, or nil.
func misplaced(c store.Consumer, name string) error {
	switch {
	case !c.IsLegible():
		return fmt.Errorf("the row that %q has: %w", name, c.Damaged)
	case c.Name != name:
		return store.DamagedConsumer(name, fmt.Errorf("it has the name %q", c.Name))
	}
	return nil
}

// Consumers implements Consumers.
func (t *Tables) Consumers(ctx context.Context, q sqlschema.Querier) ([]store.Consumer, error) {
	all, err := t.consumers(ctx, q, t.sql.consumers, nil)
	slices.SortFunc(all, func(a, b store.Consumer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
	})
	return all, err
}

// consumers returns the consumers of rows.
func (t *Tables) consumers(ctx context.Context, q sqlschema.Querier, st sqlschema.Statement,
	p sqlschema.Params) (all []store.Consumer, err error) {

	err = t.eachRow(ctx, q, st, p, func(row store.RegistryRow) { all = append(all, row.Consumer) })
	return all, err
}

// eachRow leaves out rows that Register has just created, in which it has
// written nothing but the name yet.
func (t *Tables) eachRow(ctx context.Context, q sqlschema.Querier, st sqlschema.Statement, p sqlschema.Params, do func(store.RegistryRow)) error {
	return t.each(ctx, q, st, p, func(rows sqlschema.Rows) error {
		row, empty, err := readConsumer(rows)
		if err == nil && !empty {
			do(row)
		}
		return err
	})
}

// lastSeen is a time after which no consumer is seen: that of the year 9999.
const lastSeen = 253402300799999999

func readConsumer(rows sqlschema.Rows) (row store.RegistryRow, empty bool, err error) {
	var since int64
	unread, err := sqlschema.Scan(rows, consumerNames, &row.Name, &row.Source, &row.Keys, &row.At, &since)
	if err != nil {
		return row, false, err
	}
	if unread == nil && row.Source == "" && row.Keys == "" && row.At == 0 {
		return row, true, nil
	}
	var wrong []error
	if unread == nil && (row.At <= 0 || row.At > lastSeen) {
		wrong = append(wrong, fmt.Errorf("the column seen is no time: %d", row.At))
	}
	if unread == nil && row.Name == "" {
		wrong = append(wrong, errors.New("the column name is empty"))
	}
	if unread == nil && row.Keys == "" {
		wrong = append(wrong, errors.New("the column key_name is empty"))
	}
	if why := sqlschema.Unread(unread, wrong...); why != nil {
		row.Damaged = store.DamagedConsumer(row.Name, why)
		return row, false, nil
	}
	row.Seen = max(time.Duration(since)*time.Microsecond, 0)
	return row, false, nil
}
