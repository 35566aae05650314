package consuming

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// RenameConsumer gives all rows of a consumer another name.
func (r Registry) RenameConsumer(ctx context.Context, from, to string) error {
	all, err := r.Consumers(ctx)
	if err != nil {
		return err
	}
	var rows []store.RegistryRow
	for _, c := range all {
		rows = append(rows, store.RegistryRow{Consumer: c})
	}
	names := map[string]bool{from: true, to: true}
	for old, name := range store.RenamedNames(rows, from, to) {
		names[old], names[name] = true, true
	}
	return r.db.Transact(ctx, "", func(ctx context.Context, q sqlschema.Querier) error {
		return r.tables.Rename(ctx, q, from, to, names)
	})
}

// RetireConsumer replaces the rows of a consumer by one that says that it is
// retired, and its positions by ones that nobody can read on from.
func (r Registry) RetireConsumer(ctx context.Context, as store.Retirement) error {
	return r.db.Transact(ctx, "", func(ctx context.Context, q sqlschema.Querier) error {
		return r.tables.Retire(ctx, q, as)
	})
}

// Rename implements RenameConsumer, inside a transaction. names are those that
// it may change.
func (t *Tables) Rename(ctx context.Context, q sqlschema.Querier, from, to string, names map[string]bool) error {
	for _, name := range []string{from, to} {
		if err := checkNames("Name", name); err != nil {
			return err
		}
	}
	rows, err := t.lockNames(ctx, q, slices.Sorted(maps.Keys(names)))
	if err != nil {
		return err
	}
	gone, after, err := store.RenameRows(rows, from, to)
	if err != nil {
		return err
	}
	for _, name := range gone {
		if !names[name] {
			return fmt.Errorf("%w: a rebuild of %q was registered meanwhile", once.ErrConflict, from)
		}
	}
	return t.rewrite(ctx, q, rows, gone, after)
}

// Retire implements RetireConsumer, inside a transaction.
func (t *Tables) Retire(ctx context.Context, q sqlschema.Querier, r store.Retirement) error {
	if err := checkNames("Name", r.Name, "As", r.As); err != nil {
		return err
	}
	rows, err := t.lockNames(ctx, q, []string{r.Name})
	if err != nil {
		return err
	}
	after, done, err := store.RetireRows(rows, r)
	if err != nil || done {
		return err
	}
	// The positions are locked first. What moves them now shelves nothing later.
	who := t.uuid("consumer", after.Keys)
	p := sqlschema.Params{"who": who, "queue": who, "name": after.Keys, "log": store.RetiredLog}
	if !r.Queued {
		p["queue"] = t.uuid("consumer", store.QueueOf(after.Keys))
	}
	positions, err := t.Positions(ctx, q, after.Keys)
	if err == nil {
		err = store.Corrupt(positions)
	}
	if err != nil {
		return err
	}
	if _, err := t.exec(ctx, q, t.sql.retire, p); err != nil {
		return err
	}
	inUse := int64(0)
	err = t.each(ctx, q, t.sql.shelfInUse, p, func(rows sqlschema.Rows) error { return rows.Scan(&inUse) })
	switch {
	case err != nil:
		return err
	case inUse != 0:
		return fmt.Errorf("%w: %q", store.ErrShelfInUse, r.Name)
	}
	return t.rewrite(ctx, q, rows, []string{r.Name}, []store.RegistryRow{after})
}

// lockNames locks names, whether they are registered or not, so that Register
// waits, and returns all rows, of each of these names the first one first.
func (t *Tables) lockNames(ctx context.Context, q sqlschema.Querier, names []string) (rows []store.RegistryRow, err error) {
	for _, name := range names {
		p := sqlschema.Params{"row": t.uuid("consumer", name), "name": name}
		for _, st := range []sqlschema.Statement{t.sql.meet, t.sql.lock} {
			if _, err := t.exec(ctx, q, st, p); err != nil {
				return nil, err
			}
		}
		err := t.eachRow(ctx, q, t.sql.known, p, func(row store.RegistryRow) {
			if row.Damaged == nil {
				row.Damaged = misplaced(row.Consumer, name)
			}
			row.Name = name
			rows = append(rows, row)
		})
		if err != nil {
			return nil, err
		}
	}
	first := slices.Clone(rows)
	err = t.eachRow(ctx, q, t.sql.consumers, nil, func(row store.RegistryRow) {
		if !slices.ContainsFunc(first, func(f store.RegistryRow) bool { return f.Name == row.Name && f.Source == row.Source }) {
			rows = append(rows, row)
		}
	})
	return rows, err
}

// rewrite deletes the rows of the names in gone, of all the rows that there are,
// and writes others.
func (t *Tables) rewrite(ctx context.Context, q sqlschema.Querier, rows []store.RegistryRow, gone []string, after []store.RegistryRow) error {
	var ids []any
	for _, name := range gone {
		ids = append(ids, t.uuid("consumer", name))
		for _, row := range rows {
			if row.Name != name {
				continue
			}
			c, id, err := t.find(ctx, q, name, row.Source)
			if err != nil {
				return err
			}
			if c.Name != "" { // else it is the first one
				ids = append(ids, id)
			}
		}
	}
	for _, id := range ids {
		if _, err := t.exec(ctx, q, t.sql.delete, sqlschema.Params{"row": id}); err != nil {
			return err
		}
	}
	written := make(map[string]bool)
	for _, row := range after {
		p := sqlschema.Params{"row": t.uuid("consumer", row.Name), "name": row.Name, "source": row.Source, "keys": row.Keys, "seen": row.At}
		if written[row.Name] {
			_, id, err := t.find(ctx, q, row.Name, row.Source)
			if err != nil {
				return err
			}
			p["row"] = id
		}
		written[row.Name] = true
		for _, st := range []sqlschema.Statement{t.sql.meet, t.sql.rewrite} {
			if _, err := t.exec(ctx, q, st, p); err != nil {
				return err
			}
		}
	}
	return nil
}
