package consuming

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

func sameRow(p, q store.Position) bool {
	return p.Consumer == q.Consumer && p.Partition == q.Partition
}

// Open is OpenPosition of store.Positions. It needs a transaction.
func (t *Tables) Open(ctx context.Context, q Querier, consumer, partition string) (store.Position, error) {
	p := store.Position{Consumer: consumer, Partition: partition}
	if err := t.raise(ctx, q, t.sql.raise, p); err != nil {
		return store.Position{}, err
	}
	found, err := t.positions(ctx, q, t.sql.position, t.place(p))
	if err == nil && len(found) == 0 {
		err = sqlschema.Refusal("the row of a position was deleted while it was opened: leave these tables to the store")
	}
	if err != nil {
		return store.Position{}, err
	}
	return found[0], nil
}

// Set is SetPosition of store.Positions. It needs a transaction.
func (t *Tables) Set(ctx context.Context, q Querier, p store.Position) error {
	return t.raise(ctx, q, t.sql.set, p)
}

// raise makes sure that there is a row, and raises its epoch.
func (t *Tables) raise(ctx context.Context, q Querier, how sqlschema.Statement, p store.Position) error {
	if err := checkPosition(p); err != nil {
		return err
	}
	empty := t.place(p)
	empty["digest"] = t.names.UUID([16]byte{})
	if _, err := t.exec(ctx, q, t.sql.ensure, empty); err != nil {
		return err
	}
	_, err := t.exec(ctx, q, how, t.target(p))
	return err
}

// place are the parameters that name a row, and make it.
func (t *Tables) place(p store.Position) sqlschema.Params {
	return sqlschema.Params{"row": t.uuid("position", p.Consumer, p.Partition), "who": t.uuid("consumer", p.Consumer),
		"name": p.Consumer, "partition": p.Partition}
}

// Row is the id of a row.
func (t *Tables) Row(p store.Position) any { return t.uuid("position", p.Consumer, p.Partition) }

// target are the parameters of what a row becomes.
func (t *Tables) target(to store.Position) sqlschema.Params {
	return sqlschema.Params{"row": t.uuid("position", to.Consumer, to.Partition), "epoch": to.Epoch,
		"log": to.Log, "offset": to.Offset, "digest": t.names.UUID(to.Digest)}
}

// Move is the statement that moves a row, which changes one row or none: then [Tables.Stands] says why. It is for
// transactions that cannot end unnoticed.
func (t *Tables) Move(from, to store.Position) (statement string, args []any, err error) {
	p, err := t.step(from, to)
	return t.sql.move.Text, t.sql.move.Args(p), err
}

func (t *Tables) step(from, to store.Position) (sqlschema.Params, error) {
	if err := checkMove(from, to); err != nil {
		return nil, err
	}
	p := t.target(to)
	p["at"], p["from"] = from.Offset, from.Log
	return p, nil
}

// Mark moves a row in a transaction that a database may end without a word, so that what follows would be committed
// by another: the row bears a mark until [Tables.Unmark], which nobody else ever sees. It reports whether there was a
// row to move; if not, [Tables.Stands] says why.
func (t *Tables) Mark(ctx context.Context, q Querier, from, to store.Position) (bool, error) {
	p, err := t.step(from, to)
	if err != nil {
		return false, err
	}
	changed, err := t.exec(ctx, q, t.sql.mark, p)
	return changed == 1, err
}

// Unmark takes the mark of [Tables.Mark] off again. A [Lost]: it is not there, so this is not the same transaction.
func (t *Tables) Unmark(ctx context.Context, q Querier, to store.Position) error {
	changed, err := t.exec(ctx, q, t.sql.unmark, t.target(to))
	if err == nil && changed != 1 {
		err = Lost("this is not the transaction any more in which the position was moved")
	}
	return err
}

// Stands returns nil if a row that could not be moved is where it was to be moved to, by the same epoch, and else a
// [Lost].
func (t *Tables) Stands(ctx context.Context, q Querier, from, to store.Position) error {
	found, err := t.positions(ctx, q, t.sql.position, t.place(to))
	if err != nil {
		return err
	}
	var is store.Position
	if len(found) > 0 {
		is = found[0]
		is.Shelved = to.Shelved
		if is == to {
			return nil
		}
	}
	return Lost(fmt.Sprintf("the position of %q in partition %q is at %d of %q in epoch %d, not at %d of %q in %d",
		to.Consumer, to.Partition, is.Offset, is.Log, is.Epoch, from.Offset, from.Log, from.Epoch))
}

// Positions is that of store.Positions.
func (t *Tables) Positions(ctx context.Context, q Querier, consumer string) ([]store.Position, error) {
	all, err := t.positions(ctx, q, t.sql.positions, sqlschema.Params{"who": t.uuid("consumer", consumer)})
	slices.SortFunc(all, func(a, b store.Position) int { return strings.Compare(a.Partition, b.Partition) })
	return all, err
}

func (t *Tables) positions(ctx context.Context, q Querier, st sqlschema.Statement,
	p sqlschema.Params) (all []store.Position, err error) {

	err = t.each(ctx, q, st, p, func(rows Rows) error {
		var p store.Position
		var digest []byte
		var shelved int64
		if err := rows.Scan(&p.Consumer, &p.Partition, &p.Log, &p.Offset, &digest, &p.Epoch, &shelved); err != nil {
			return err
		}
		copy(p.Digest[:], digest)
		p.Shelved = shelved != 0
		all = append(all, p)
		return nil
	})
	return all, err
}

func checkPosition(p store.Position) error {
	return checkNames("Consumer", p.Consumer, "Partition", p.Partition, "Log", p.Log)
}

func checkMove(from, to store.Position) error {
	switch {
	case !sameRow(from, to) || from.Epoch != to.Epoch:
		return sqlschema.Refusal("a move is from and to one row in one epoch")
	case from.Log == to.Log && from.Offset == to.Offset:
		return sqlschema.Refusal(fmt.Sprintf(
			"a move to where the position is, at %d of %q, cannot be told from its repetition", to.Offset, to.Log))
	}
	return checkPosition(to)
}
