package consuming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// PositionTable implements the methods of [store.Positions] except TransactAt.
// SQL stores embed it.
type PositionTable struct {
	tables *Tables
	db     sqlschema.Access
}

// NewPositionTable returns the positions of a store.
func NewPositionTable(t *Tables, db sqlschema.Access) PositionTable { return PositionTable{t, db} }

// OpenPosition raises the epoch of a row, so that only the caller can move it,
// and returns the row. It waits up to ten seconds for another transaction on
// the row, and then returns [once.ErrConflict].
func (pt PositionTable) OpenPosition(ctx context.Context, consumer, partition string) (p store.Position, err error) {
	err = pt.db.Transact(ctx, "", func(ctx context.Context, q sqlschema.Querier) error {
		p, err = pt.tables.Open(ctx, q, consumer, partition)
		return err
	})
	return p, err
}

// SetPosition writes a row even if another caller has opened it. It waits as
// OpenPosition does.
func (pt PositionTable) SetPosition(ctx context.Context, p store.Position) error {
	return pt.db.Transact(ctx, "", func(ctx context.Context, q sqlschema.Querier) error {
		return pt.tables.Set(ctx, q, p)
	})
}

// Positions returns the rows of a consumer in the order of their partitions.
func (pt PositionTable) Positions(ctx context.Context, consumer string) (all []store.Position, err error) {
	err = pt.db.Read(ctx, func(q sqlschema.Querier) error {
		all, err = pt.tables.Positions(ctx, q, consumer)
		return err
	})
	return all, err
}

func sameRow(p, q store.Position) bool {
	return p.Consumer == q.Consumer && p.Partition == q.Partition
}

// Open implements OpenPosition, inside a transaction.
func (t *Tables) Open(ctx context.Context, q sqlschema.Querier, consumer, partition string) (store.Position, error) {
	p := store.Position{Consumer: consumer, Partition: partition}
	if err := t.ensure(ctx, q, p); err != nil {
		return store.Position{}, err
	}
	if _, err := t.exec(ctx, q, t.sql.raise, t.target(p)); err != nil {
		return store.Position{}, err
	}
	is, ok, err := t.at(ctx, q, p)
	switch {
	case err != nil:
		return store.Position{}, err
	case !ok:
		return store.Position{}, errDeleted
	case is.Damaged != nil:
		return store.Position{}, is.Damaged
	}
	return is, nil
}

// Set implements SetPosition, inside a transaction.
func (t *Tables) Set(ctx context.Context, q sqlschema.Querier, p store.Position) error {
	if err := t.ensure(ctx, q, p); err != nil {
		return err
	}
	all := t.target(p)
	maps.Copy(all, t.place(p))
	// The second is for a damaged row, of which it repairs all columns.
	for _, how := range []sqlschema.Statement{t.sql.set, t.sql.repair} {
		changed, err := t.exec(ctx, q, how, all)
		if err != nil || changed > 0 {
			return err
		}
	}
	return errDeleted
}

const errDeleted = sqlschema.Refusal("the row of a position was deleted while it was opened or set: only the store may change these tables")

// ensure creates the row of a position if it is missing.
func (t *Tables) ensure(ctx context.Context, q sqlschema.Querier, p store.Position) error {
	if err := checkPosition(p); err != nil {
		return err
	}
	empty := t.place(p)
	empty["digest"] = t.names.UUID([16]byte{})
	_, err := t.exec(ctx, q, t.sql.ensure, empty)
	return err
}

// at reads the row of a position.
func (t *Tables) at(ctx context.Context, q sqlschema.Querier, p store.Position) (is store.Position, ok bool, err error) {
	found, err := t.positions(ctx, q, t.sql.position, t.place(p))
	if err != nil || len(found) == 0 {
		return is, false, err
	}
	is = found[0].Position
	is.Consumer, is.Partition = p.Consumer, p.Partition
	if is.Damaged != nil {
		is.Damaged = store.DamagedPosition(p.Consumer, p.Partition, is.Damaged)
	}
	return is, true, nil
}

// place returns the parameters that name a row, or create it.
func (t *Tables) place(p store.Position) sqlschema.Params {
	return sqlschema.Params{"row": t.uuid("position", p.Consumer, p.Partition), "who": t.uuid("consumer", p.Consumer),
		"name": p.Consumer, "partition": p.Partition}
}

// Row is the ID of a row.
func (t *Tables) Row(p store.Position) any { return t.uuid("position", p.Consumer, p.Partition) }

// target returns the parameters of what a row becomes.
func (t *Tables) target(to store.Position) sqlschema.Params {
	return sqlschema.Params{"row": t.uuid("position", to.Consumer, to.Partition), "epoch": to.Epoch,
		"log": to.Log, "offset": to.Offset, "digest": t.names.UUID(to.Digest)}
}

// Move returns the statement that moves a row. If it changes no row,
// [Tables.Stands] says why. Use it in transactions that the database cannot end
// silently.
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

// Mark moves a row in a transaction that the database may end silently, after
// which later statements would be committed by another transaction. The row has
// a mark, which nobody else sees, until [Tables.Unmark]. Mark reports whether
// it moved the row. If not, [Tables.Stands] says why.
func (t *Tables) Mark(ctx context.Context, q sqlschema.Querier, from, to store.Position) (bool, error) {
	p, err := t.step(from, to)
	if err != nil {
		return false, err
	}
	changed, err := t.exec(ctx, q, t.sql.mark, p)
	return changed == 1, err
}

// Unmark removes the mark of [Tables.Mark]. It returns a [sqlschema.Lost] if
// there is none, because this is another transaction.
func (t *Tables) Unmark(ctx context.Context, q sqlschema.Querier, to store.Position) error {
	changed, err := t.exec(ctx, q, t.sql.unmark, t.target(to))
	if err == nil && changed != 1 {
		err = sqlschema.Lost("this is no longer the transaction in which the position was moved")
	}
	return err
}

// Stands returns nil if a row that could not be moved is already at its target
// in this epoch. Otherwise it returns a [sqlschema.Lost].
func (t *Tables) Stands(ctx context.Context, q sqlschema.Querier, from, to store.Position) error {
	is, ok, err := t.at(ctx, q, to)
	if err == nil {
		err = is.Damaged
	}
	if err != nil {
		return err
	}
	is.Shelved = to.Shelved
	if ok && is == to {
		return nil
	}
	return sqlschema.Lost(fmt.Sprintf("the position of %q in partition %q is at %d of %q in epoch %d, not at %d of %q in %d",
		to.Consumer, to.Partition, is.Offset, is.Log, is.Epoch, from.Offset, from.Log, from.Epoch))
}

// Positions implements Positions.
func (t *Tables) Positions(ctx context.Context, q sqlschema.Querier, consumer string) ([]store.Position, error) {
	found, err := t.positions(ctx, q, t.sql.positions, sqlschema.Params{"who": t.uuid("consumer", consumer), "name": consumer})
	var all []store.Position
	for _, p := range found {
		if !p.belongsTo(consumer) {
			continue
		}
		if p.Consumer = consumer; p.Damaged != nil {
			p.Damaged = store.DamagedPosition(consumer, p.Partition, p.Damaged)
		}
		all = append(all, p.Position)
	}
	slices.SortFunc(all, func(a, b store.Position) int { return strings.Compare(a.Partition, b.Partition) })
	return all, err
}

// positions returns rows. Damaged has only what is wrong with them.
func (t *Tables) positions(ctx context.Context, q sqlschema.Querier, st sqlschema.Statement,
	p sqlschema.Params) (all []positionRow, err error) {

	err = t.each(ctx, q, st, p, func(rows sqlschema.Rows) error {
		p, err := readPosition(rows)
		all = append(all, p)
		return err
	})
	return all, err
}

// lastEpoch is after all epochs: those of repaired rows are times.
const lastEpoch = 4_000_000_000_000_000_000

// positionRow is a row as it was read. Its Consumer and Partition are empty if they
// are not those of its ID.
type positionRow struct {
	store.Position
	who sqlschema.Digest // of the consumer
}

// belongsTo reports whether a row, which may be damaged, is that of a consumer. The
// ID has the names in it, so a consumer_id that contradicts both is what is damaged.
func (p positionRow) belongsTo(consumer string) bool {
	return p.Consumer == consumer || p.Consumer == "" && p.isOf(consumer)
}

func (p positionRow) isOf(consumer string) bool {
	is := name.Digest("consumer", consumer)
	return bytes.Equal(p.who, is[:])
}

func readPosition(rows sqlschema.Rows) (p positionRow, err error) {
	var id, digest sqlschema.Digest
	var epoch, shelved int64
	unread, err := sqlschema.Scan(rows, positionNames, &id, &p.who, &p.Consumer, &p.Partition, &p.Log, &p.Offset, &digest, &epoch, &shelved)
	if err != nil {
		return p, err
	}
	copy(p.Digest[:], digest)
	p.Shelved, p.Epoch = shelved != 0, max(epoch, -epoch)
	var wrong []error
	if is := name.Digest("position", p.Consumer, p.Partition); !bytes.Equal(id, is[:]) {
		wrong = append(wrong, fmt.Errorf("its row has the names %q and %q, which are not its own", p.Consumer, p.Partition))
		p.Consumer, p.Partition = "", ""
	} else if unread == nil && !p.isOf(p.Consumer) {
		wrong = append(wrong, errors.New("its consumer_id is not that of its consumer"))
	}
	if unread == nil && (p.Epoch <= 0 || p.Epoch >= lastEpoch) {
		wrong = append(wrong, fmt.Errorf("it has the epoch %d", epoch))
	}
	if unread == nil && len(digest) != len(p.Digest) {
		wrong = append(wrong, fmt.Errorf("its digest has %d bytes", len(digest)))
	}
	if unread == nil && p.Log == "" && (p.Offset != 0 || p.Digest != [16]byte{}) {
		wrong = append(wrong, fmt.Errorf("it has the offset %d, and no log", p.Offset))
	}
	p.Damaged = sqlschema.Unread(unread, wrong...)
	return p, nil
}

func checkPosition(p store.Position) error {
	return checkNames("Consumer", p.Consumer, "Partition", p.Partition, "Log", p.Log)
}

func checkMove(from, to store.Position) error {
	switch {
	case !sameRow(from, to) || from.Epoch != to.Epoch:
		return sqlschema.Refusal("both positions of a move name one row in one epoch")
	case from.Log == to.Log && from.Offset == to.Offset:
		return sqlschema.Refusal(fmt.Sprintf(
			"a move to where the position is, at %d of %q, cannot be told from its repetition", to.Offset, to.Log))
	}
	return checkPosition(to)
}
