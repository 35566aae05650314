// Package memcas is an engine of package cas in memory, for tests and
// simulations. A transaction of it is one conditional batch. Its fields are for
// tests that look at what is stored, or change it.
package memcas

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// Table has rows and documents, and the effects of its users beside them.
type Table struct {
	Mu       sync.Mutex
	Docs     map[cas.DocName]cas.Doc
	Rows     map[[16]byte]cas.Stored
	Effects  map[string]int
	Versions int  // how many were given
	Silent   bool // a refused Put does not tell what is stored

	// Largest is how many rows, documents and effects a batch may have. 0: any
	// number.
	Largest int
}

// New returns an empty Table.
func New() *Table {
	return &Table{Docs: make(map[cas.DocName]cas.Doc), Rows: make(map[[16]byte]cas.Stored), Effects: make(map[string]int)}
}

// Load is Engine.Load.
func (t *Table) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Rows[k.UUID()], ctx.Err()
}

// Put is Engine.Put.
func (t *Table) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if err := ctx.Err(); err != nil {
		return cas.Stored{}, err
	}
	if is := t.Rows[row.Key.UUID()]; is.Version != over {
		if t.Silent {
			is = cas.Stored{}
		}
		return is, cas.ErrStale
	}
	return t.Write(row), nil
}

// Write writes a row whatever is stored. The caller has the lock, or no need of
// it.
func (t *Table) Write(row cas.Row) cas.Stored {
	is := cas.Stored{Row: row, Version: t.version()}
	t.Rows[row.Key.UUID()] = is
	return is
}

func (t *Table) version() string {
	t.Versions++
	return strconv.Itoa(t.Versions)
}

// Now is the wall clock of this process.
func (*Table) Now(context.Context) (cas.Now, error) {
	return cas.Exactly(cas.Instant(time.Now().UnixMicro())), nil
}

// Batch collects writes.
type Batch struct {
	Effects []string // of the user

	table   *Table
	changes cas.Changes
	ended   bool
}

// Begin is TxEngine.Begin.
func (t *Table) Begin() *Batch { return &Batch{table: t} }

// Changes is TxEngine.Changes.
func (t *Table) Changes(tx *Batch) (*cas.Changes, error) {
	if tx.ended || tx.table != t {
		return nil, fmt.Errorf("%w: the transaction has ended", once.ErrInvalid)
	}
	return &tx.changes, nil
}

// Commit is TxEngine.Commit.
func (t *Table) Commit(_ context.Context, tx *Batch) error {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	tx.ended = true
	rows, docs := tx.changes.All(), tx.changes.Docs()
	if n := len(rows) + len(docs) + len(tx.Effects); t.Largest > 0 && n > t.Largest {
		return fmt.Errorf("%w: a batch of %d writes, and the engine takes %d", once.ErrInvalid, n, t.Largest)
	}
	for _, c := range rows {
		if t.Rows[c.Is.Key.UUID()].Version != c.Was.Version {
			return once.ErrConflict
		}
	}
	for _, c := range docs {
		if t.Docs[c.DocName].Version != c.Over {
			return once.ErrConflict
		}
	}
	for _, c := range docs {
		if c.Is == nil {
			delete(t.Docs, c.DocName)
		} else {
			t.Docs[c.DocName] = cas.Doc{Text: c.Is, Version: t.version()}
		}
	}
	for _, c := range rows {
		t.Write(c.Is)
	}
	for _, name := range tx.Effects {
		t.Effects[name]++
	}
	return nil
}

// Rollback is TxEngine.Rollback.
func (*Table) Rollback(tx *Batch) { tx.ended = true }

// LoadDoc is DocEngine.LoadDoc.
func (t *Table) LoadDoc(ctx context.Context, at cas.DocName) (cas.Doc, error) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Docs[at], ctx.Err()
}

// Expire deletes rows that the engine may delete, as one with a time to live does
// in its own time. It returns how many.
func (t *Table) Expire(now cas.Now) (n int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for id, is := range t.Rows {
		if at, ok := is.Expires(); ok && now.Passed(at) {
			delete(t.Rows, id)
			n++
		}
	}
	return n
}
