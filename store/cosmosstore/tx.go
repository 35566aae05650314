package cosmosstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// Tx is a transaction: it collects writes of items with the partition key of the
// record, and is sent as one azcosmos.TransactionalBatch with it. Its methods are
// those of that type. A mistake in their arguments makes the commit fail, with
// nothing sent.
//
// A transaction reads nothing. Read items through the container, and give their
// entity tags as IfMatchETag: if such an item has changed by the commit, the work
// is called again. Any other write that the service refuses is a [WriteError].
//
// A Tx is not safe for concurrent use.
type Tx struct {
	engine  *engine
	managed bool // by Transact
	ended   bool
	changes cas.Changes
	writes  []write
	err     error // the first mistake
}

// write is a write of a user.
type write struct {
	add     func(*azcosmos.TransactionalBatch)
	body    []byte // nil: it has no item
	size    int
	matches bool // it has an entity tag
}

// WriteError is returned when the service refuses a write of a transaction, and
// with it the transaction, for example because the item exists already.
type WriteError struct {
	Index      int // of the write, from 0
	StatusCode int // 409: it exists; 404: it does not; 412: the condition of a patch does not hold
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("cosmosstore: write %d of the transaction was refused with status %d, so nothing was written", e.Index, e.StatusCode)
}

// CreateItem adds the creation of an item.
func (tx *Tx) CreateItem(item []byte) {
	tx.add(write{body: item, add: func(b *azcosmos.TransactionalBatch) { b.CreateItem(item, nil) }}, nil)
}

// UpsertItem adds the creation of an item, or its replacement if it exists.
func (tx *Tx) UpsertItem(item []byte, o *azcosmos.TransactionalBatchItemOptions) {
	tx.add(write{body: item, add: func(b *azcosmos.TransactionalBatch) { b.UpsertItem(item, o) }}, o)
}

// ReplaceItem adds the replacement of an item.
func (tx *Tx) ReplaceItem(id string, item []byte, o *azcosmos.TransactionalBatchItemOptions) {
	tx.checkID(id)
	tx.add(write{body: item, add: func(b *azcosmos.TransactionalBatch) { b.ReplaceItem(id, item, o) }}, o)
}

// DeleteItem adds the deletion of an item.
func (tx *Tx) DeleteItem(id string, o *azcosmos.TransactionalBatchItemOptions) {
	tx.checkID(id)
	tx.add(write{add: func(b *azcosmos.TransactionalBatch) { b.DeleteItem(id, o) }}, o)
}

// PatchItem adds a patch of an item.
func (tx *Tx) PatchItem(id string, p azcosmos.PatchOperations, o *azcosmos.TransactionalBatchItemOptions) {
	tx.checkID(id)
	text, err := json.Marshal(p)
	if err != nil {
		tx.fail("the patch of %q: %v", id, err)
	}
	tx.add(write{size: len(text), add: func(b *azcosmos.TransactionalBatch) { b.PatchItem(id, p, o) }}, o)
}

func (tx *Tx) add(w write, o *azcosmos.TransactionalBatchItemOptions) {
	if tx.ended {
		tx.fail("the transaction has ended")
	}
	w.size += len(w.body)
	w.matches = o != nil && o.IfMatchETag != nil
	tx.writes = append(tx.writes, w)
}

// checkID refuses an id that the client would write into the batch unescaped.
func (tx *Tx) checkID(id string) {
	if id == "" || strings.ContainsAny(id, `"\/?#`) || strings.ContainsFunc(id, func(c rune) bool { return c < ' ' }) {
		tx.fail("%q is not the id of an item", id)
	}
}

func (tx *Tx) fail(format string, args ...any) {
	if tx.err == nil {
		tx.err = fmt.Errorf("%w: cosmosstore: %s", once.ErrInvalid, fmt.Sprintf(format, args...))
	}
}

// Begin returns a transaction that the caller ends, for [once.InTx].
func (s *Store) Begin() *Tx { return &Tx{engine: s.engine} }

// Commit sends a transaction of Begin. It returns once.ErrConflict if a record or
// an item with an entity tag has changed, and once.ErrOutcomeUnknown if it is not
// known whether the transaction was applied.
func (tx *Tx) Commit(ctx context.Context) error {
	if tx.managed {
		return errManaged
	}
	return tx.engine.Commit(ctx, tx)
}

// Rollback ends a transaction of Begin and drops its writes.
func (tx *Tx) Rollback() error {
	if tx.managed {
		return errManaged
	}
	tx.engine.Rollback(tx)
	return nil
}

var errManaged = fmt.Errorf("%w: cosmosstore: the transaction is committed or rolled back by what began it", once.ErrInvalid)

// Begin returns a transaction of Transact.
func (e *engine) Begin() *Tx { return &Tx{engine: e, managed: true} }

// Changes returns the records that a transaction writes. Containers are told apart
// by their clients, because the client does not tell the account and the database.
func (e *engine) Changes(tx *Tx) (*cas.Changes, error) {
	if tx == nil || tx.ended || tx.engine != e && tx.engine.container != e.container {
		return nil, fmt.Errorf("%w: cosmosstore: the transaction has ended, or is for another client of a container", once.ErrInvalid)
	}
	return &tx.changes, nil
}

// Rollback ends a transaction.
func (e *engine) Rollback(tx *Tx) { tx.ended = true }

// commitTime is how long a commit waits for its answer, or to be let through by
// the throttle.
const commitTime = 30 * time.Second

// Commit sends a transaction as one batch. Its records and documents come first,
// so it is their conflict that the service reports.
func (e *engine) Commit(ctx context.Context, tx *Tx) error {
	if _, err := e.Changes(tx); err != nil {
		return err
	}
	tx.ended = true
	if err := errors.Join(tx.err, e.ready(ctx)); err != nil {
		return err
	}
	changes, docs := tx.changes.All(), tx.changes.Docs()
	own := len(changes) + len(docs)
	if own+len(tx.writes) == 0 {
		return nil
	}
	batch, err := e.batch(ctx, changes, docs, tx.writes)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	results, err := e.execute(ctx, batch)
	switch {
	case err != nil && mayHaveBeenApplied(err):
		return fmt.Errorf("%w: %w", once.ErrOutcomeUnknown, err)
	case err != nil:
		return err
	}
	cause := causeOf(results)
	if cause < 0 {
		return nil
	}
	status := int(results[cause].StatusCode)
	refused := &WriteError{Index: cause - own, StatusCode: status}
	switch {
	case cause < own && isStale(status), cause >= own && status == http.StatusPreconditionFailed && tx.writes[refused.Index].matches:
		return fmt.Errorf("%w: cosmosstore: an item has changed", once.ErrConflict)
	case cause < own:
		return fmt.Errorf("cosmosstore: the service refused the record or a document with status %d", status)
	}
	return refused
}

func isStale(status int) bool {
	return status == http.StatusConflict || status == http.StatusPreconditionFailed || status == http.StatusNotFound
}

// batch makes the batch of a transaction, if the service can take it.
func (e *engine) batch(ctx context.Context, changes []cas.Change, docs []cas.DocChange, writes []write) (azcosmos.TransactionalBatch, error) {
	var none azcosmos.TransactionalBatch
	invalid := func(format string, args ...any) (azcosmos.TransactionalBatch, error) {
		return none, fmt.Errorf("%w: cosmosstore: %s", once.ErrInvalid, fmt.Sprintf(format, args...))
	}
	if n := len(changes) + len(docs) + len(writes); n > maxBatch {
		return invalid("the transaction has %d writes, and the service takes %d", n, maxBatch)
	}
	partition, known, size := "", false, 0
	belongs := func(to string) bool {
		if !known {
			partition, known = to, true
		}
		return partition == to
	}
	var adds []func(*azcosmos.TransactionalBatch)
	for _, c := range changes {
		id, to, text, err := e.item(ctx, c.Is)
		if err != nil {
			return none, err
		}
		if !belongs(to) {
			return invalid("the transaction has records with the partition keys %q and %q", partition, to)
		}
		size += len(text)
		if c.Was.Version == "" {
			adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.CreateItem(text, nil) })
			continue
		}
		tag := azcore.ETag(c.Was.Version)
		adds = append(adds, func(b *azcosmos.TransactionalBatch) {
			b.ReplaceItem(id, text, &azcosmos.TransactionalBatchItemOptions{IfMatchETag: &tag})
		})
	}
	for _, c := range docs {
		now, err := e.clock.Now(ctx)
		if err != nil {
			return none, err
		}
		id, to := e.docAddress(c.DocName)
		if !belongs(to) {
			return invalid("the transaction has the partition key %q, and the document %s has %q: what consumers and relays note is a "+
				"transaction of its own", partition, c.Name, to)
		}
		o := new(azcosmos.TransactionalBatchItemOptions)
		if c.Over != "" {
			tag := azcore.ETag(c.Over)
			o.IfMatchETag = &tag
		}
		if c.Is == nil {
			adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.DeleteItem(id, o) })
			continue
		}
		text, err := e.encodeDoc(c, now)
		if err != nil {
			return none, err
		}
		size += len(text)
		if c.Over == "" {
			adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.CreateItem(text, nil) })
		} else {
			adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.ReplaceItem(id, text, o) })
		}
	}
	for i, w := range writes {
		if w.body != nil {
			to, err := partitionOf(w.body, *e.property.Load())
			if err != nil {
				return invalid("write %d of the transaction: %v", i, err)
			}
			if !belongs(to) {
				return invalid("write %d of the transaction has the partition key %q, and those before it have %q: "+
					"Options.Partition returns that of a record", i, to, partition)
			}
		}
		size += w.size
		adds = append(adds, w.add)
	}
	if !known {
		return invalid("the partition key of the transaction is not known: it has neither a record nor an item")
	}
	const overhead = 256 // of an operation, at most, without its item
	if size += len(adds) * overhead; size > maxItem {
		return invalid("the transaction has about %d bytes, and the service takes %d", size, maxItem)
	}
	batch := e.container.NewTransactionalBatch(azcosmos.NewPartitionKeyString(partition))
	for _, add := range adds {
		add(&batch)
	}
	return batch, nil
}

// partitionOf returns the partition key of an item.
func partitionOf(item []byte, property string) (string, error) {
	var properties map[string]json.RawMessage
	if err := json.Unmarshal(item, &properties); err != nil {
		return "", fmt.Errorf("its item is not JSON: %w", err)
	}
	var is *string
	if err := json.Unmarshal(properties[property], &is); err != nil || is == nil {
		return "", fmt.Errorf("its item has no text in %q, which is the partition key", property)
	}
	return *is, nil
}
