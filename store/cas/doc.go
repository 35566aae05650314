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

// DocEngine is an engine that keeps documents besides rows, for [Consuming].
type DocEngine[Tx any] interface {
	// LoadDoc returns a document, or the zero Doc if there is none. It sees every
	// commit that has returned.
	LoadDoc(ctx context.Context, name string) (Doc, error)

	// Commit of the TxEngine also writes Changes.Docs.
	TxEngine[Tx]
}

// Doc is a document as an engine has it.
type Doc struct {
	Text    []byte // JSON, or a part of a message; at most Consuming.MaxDoc bytes
	Version string // as of a row; empty: there is no document
}

// DocChange is a document that a transaction writes if the stored version is
// still Over, or deletes if Is is nil.
type DocChange struct {
	Name string
	Over string
	Is   []byte
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
}

// find returns a document that the transaction has read, or nil.
func (c *Changes) find(name string) *docChange {
	i := slices.IndexFunc(c.docs, func(d *docChange) bool { return d.Name == name })
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
}

// read decodes a document as the transaction sees it. It reports whether there
// is one.
func (d docs[Tx]) read(ctx context.Context, name string, into any) (bool, error) {
	if is := d.changes.find(name); is != nil {
		return decodeDoc(name, is.Is, into)
	}
	was, err := d.engine.LoadDoc(ctx, name)
	if err != nil {
		return false, err
	}
	d.changes.docs = append(d.changes.docs, &docChange{DocChange: DocChange{Name: name, Over: was.Version, Is: was.Text}})
	return decodeDoc(name, was.Text, into)
}

// write writes a document that was read: as JSON, or bytes as they are. A nil
// value deletes it.
func (d docs[Tx]) write(name string, value any) (err error) {
	is := d.changes.find(name)
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

func decodeDoc(name string, text []byte, into any) (bool, error) {
	if text == nil {
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

// alone makes changes in a transaction of their own, and again if others change
// the same documents.
func (c *Consuming[Tx]) alone(ctx context.Context, make func(Tx) error) error {
	pause := backoff.Backoff{First: 2 * time.Millisecond, Limit: 100 * time.Millisecond}
	for try := 1; ; try++ {
		err := c.once(ctx, make)
		if !errors.Is(err, once.ErrConflict) || try == tries || backoff.Sleep(ctx, pause.Next()) != nil {
			return err
		}
	}
}

func (c *Consuming[Tx]) once(ctx context.Context, make func(Tx) error) error {
	tx := c.Docs.Begin()
	if err := make(tx); err != nil {
		c.Docs.Rollback(tx)
		return err
	}
	return c.Docs.Commit(ctx, tx)
}

// in returns the documents of a transaction, and the time.
func (c *Consuming[Tx]) in(ctx context.Context, tx Tx) (docs[Tx], Now, error) {
	now, err := c.now(ctx)
	if err != nil {
		return docs[Tx]{}, now, err
	}
	changes, err := c.Docs.Changes(tx)
	return docs[Tx]{c.Docs, changes, c.MaxDoc}, now, err
}
