package cas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
)

// DocEngine is an engine that keeps documents besides rows, for [Shelving] and
// [Consuming].
type DocEngine[Tx any] interface {
	// LoadDoc returns a document, or the zero Doc if there is none. It sees every
	// commit that has returned.
	LoadDoc(ctx context.Context, at DocName) (Doc, error)

	// Commit of the TxEngine also writes Changes.Docs. Documents without a Place that
	// cannot be in one request with what else the transaction writes are
	// once.ErrInvalid.
	TxEngine[Tx]
}

// DocName identifies a document. A name consists of letters, digits, '/' and '-',
// and has up to 600 of them.
type DocName struct {
	// Place is what QueueEngine.PlaceOf returned for the transaction that has written
	// the document, or empty for the documents of Shelving and of leases.
	Place string
	Name  string
}

// Doc is a document as an engine has it.
type Doc struct {
	Text    []byte // JSON, or with any bytes; at most MaxDoc of them
	Version string // as of a row; empty: there is no document

	// Damage is why the document cannot be read, as an error that wraps
	// once.ErrCorrupt. Then it has no Text, and its Version is that by which the
	// engine replaces it. One damaged document must not keep others from being read.
	Damage error
}

// DocChange is a document that a transaction writes if the stored version is
// still Over, or deletes if Is is nil.
type DocChange struct {
	DocName
	Over string
	Is   []byte

	// Expires is when the engine may delete the document, if it is not 0.
	Expires Instant
}

// Docs returns the changes of documents in the order in which they were first
// made.
func (c *Changes) Docs() (all []DocChange) {
	for _, d := range c.docs {
		if d.written {
			all = append(all, d.DocChange)
		}
	}
	return all
}

// docChange is a document that a transaction has read.
type docChange struct {
	DocChange
	written bool
	damage  error // of what was read
}

// find returns a document that the transaction has read, or nil.
func (c *Changes) find(at DocName) *docChange {
	i := slices.IndexFunc(c.docs, func(d *docChange) bool { return d.DocName == at })
	if i < 0 {
		return nil
	}
	return c.docs[i]
}

// docs reads and writes documents of a transaction.
type docs[Tx any] struct {
	engine  DocEngine[Tx]
	changes *Changes
	limit   int
	place   string
}

// read decodes a document as the transaction sees it. It reports whether there
// is one.
func (d docs[Tx]) read(ctx context.Context, name string, into any) (bool, error) {
	at := DocName{d.place, name}
	if is := d.changes.find(at); is != nil {
		doc := Doc{Text: is.Is}
		if !is.written {
			doc.Damage = is.damage
		}
		return decodeDoc(name, doc, into)
	}
	was, err := d.engine.LoadDoc(ctx, at)
	if err != nil {
		return false, err
	}
	d.changes.docs = append(d.changes.docs, &docChange{DocChange: DocChange{DocName: at, Over: was.Version, Is: was.Text}, damage: was.Damage})
	return decodeDoc(name, was, into)
}

// write writes a document that was read: as JSON, or bytes as they are. A nil
// value deletes it.
func (d docs[Tx]) write(name string, value any) (err error) {
	is := d.changes.find(DocName{d.place, name})
	is.Is = nil
	if is.written = value != nil || is.Over != ""; value == nil {
		return nil
	}
	text, raw := value.([]byte)
	if !raw {
		text, err = json.Marshal(value)
	}
	if err == nil && len(text) > d.limit {
		err = fmt.Errorf("%w: the document %s would have %d bytes, and the store takes %d", once.ErrInvalid, name, len(text), d.limit)
	}
	is.Is = text
	return err
}

// writeUntil is write for a document that the engine may delete after a time.
func (d docs[Tx]) writeUntil(name string, value any, expires Instant) error {
	d.changes.find(DocName{d.place, name}).Expires = expires
	return d.write(name, value)
}

// create writes a document that was not read, and must not exist.
func (d docs[Tx]) create(name string, text []byte) error {
	if at := (DocName{d.place, name}); d.changes.find(at) == nil {
		d.changes.docs = append(d.changes.docs, &docChange{DocChange: DocChange{DocName: at}})
	}
	return d.write(name, text)
}

func decodeDoc(name string, doc Doc, into any) (bool, error) {
	text := doc.Text
	switch {
	case doc.Damage != nil:
		return false, doc.Damage
	case text == nil:
		return false, nil
	}
	if raw, ok := into.(*[]byte); ok {
		*raw = text
		return true, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return false, fmt.Errorf("%w: the document %s: %w", once.ErrCorrupt, name, err)
	}
	return true, nil
}

func (c *Shelving[Tx]) alone(ctx context.Context, make func(Tx) error) error {
	return alone(ctx, c.Docs, make)
}

// in returns the documents of a transaction, and the time.
func (c *Shelving[Tx]) in(ctx context.Context, tx Tx) (docs[Tx], Now, error) {
	return docsIn(ctx, c.Transactions, c.Docs, tx, c.MaxDoc)
}

// alone makes changes in a transaction of their own, and again if others change
// the same documents.
func alone[Tx any](ctx context.Context, engine DocEngine[Tx], make func(Tx) error) error {
	pause := backoff.Backoff{First: 2 * time.Millisecond, Limit: 100 * time.Millisecond}
	for try := 1; ; try++ {
		err := inOne(ctx, engine, make)
		if !errors.Is(err, once.ErrConflict) || try == tries || backoff.Sleep(ctx, pause.Next()) != nil {
			return err
		}
	}
}

func inOne[Tx any](ctx context.Context, engine DocEngine[Tx], make func(Tx) error) error {
	tx := engine.Begin()
	if err := make(tx); err != nil {
		engine.Rollback(tx)
		return err
	}
	return engine.Commit(ctx, tx)
}

// docsIn returns the documents of a transaction, and the time.
func docsIn[Tx any](ctx context.Context, t *Transactions[Tx], engine DocEngine[Tx], tx Tx, limit int) (docs[Tx], Now, error) {
	now, err := t.now(ctx)
	if err != nil {
		return docs[Tx]{}, now, err
	}
	changes, err := engine.Changes(tx)
	return docs[Tx]{engine: engine, changes: changes, limit: limit}, now, err
}
