package tablestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// Tx is a transaction: it collects what is written with its commit, as one entity
// group transaction. All entities are in the partition of the key. Reads do not
// see what it has collected: read with your own client, and write what you have
// read with IfMatch. It must not be used concurrently.
type Tx struct {
	engine  *engine
	changes cas.Changes
	actions []aztables.TransactionAction
	rows    map[string]bool // RowKeys in actions
	place   string          // PartitionKey of actions
	size    int
	inner   bool // Transact ends it
	ended   bool
}

// Write adds actions. An action with the IfMatch of an entity that has changed
// makes the whole transaction a conflict, and DoTx runs again. Any other refusal
// by the service is returned as its error. The store's limits are those of the
// service: 100 entities including the key's and messages, 4 MiB, one partition, and
// one action for an entity. If they are exceeded, Write or the commit returns
// [once.ErrInvalid], and nothing is sent.
func (t *Tx) Write(actions ...aztables.TransactionAction) error {
	if t.ended {
		return errEnded
	}
	for _, a := range actions {
		var is struct{ PartitionKey, RowKey *string }
		if err := json.Unmarshal(a.Entity, &is); err != nil || is.PartitionKey == nil || is.RowKey == nil {
			return fmt.Errorf("%w: tablestore: the entity has no PartitionKey or no RowKey: %v", once.ErrInvalid, err)
		}
		place, row := *is.PartitionKey, *is.RowKey
		switch {
		case strings.HasPrefix(row, reserved):
			return fmt.Errorf("%w: tablestore: RowKeys that begin with %q are the store's: %q", once.ErrInvalid, reserved, row)
		case len(t.actions) > 0 && place != t.place:
			return fmt.Errorf("%w: tablestore: a transaction has one partition, and entities in %q and %q", once.ErrInvalid, t.place, place)
		case t.rows[row]:
			return fmt.Errorf("%w: tablestore: a transaction has one action for an entity, and several for %q", once.ErrInvalid, row)
		}
		if t.rows == nil {
			t.rows = make(map[string]bool)
		}
		t.rows[row], t.place = true, place
		t.actions = append(t.actions, a)
		t.size += sizeOf(a)
	}
	return nil
}

// sizeOf returns about how many bytes of a request an action takes, and rather
// more.
func sizeOf(a aztables.TransactionAction) int { return len(a.Entity) + 1024 }

var (
	errEnded = fmt.Errorf("%w: tablestore: the transaction has ended", once.ErrInvalid)
	errInner = fmt.Errorf("%w: tablestore: the transaction is ended by the function that began it", once.ErrInvalid)
)

// Begin returns a transaction that the caller ends, for [once.InTx].
func (s *Store) Begin() *Tx { return &Tx{engine: s.engine} }

// Commit sends the transaction. Errors are as for [once.TxStore].
func (t *Tx) Commit(ctx context.Context) error {
	if t.inner {
		return errInner
	}
	if t.ended {
		return errEnded
	}
	return t.engine.Commit(ctx, t)
}

// Rollback drops the transaction. It may be called after Commit.
func (t *Tx) Rollback() error {
	if t.inner {
		return errInner
	}
	t.ended = true
	return nil
}

func (e *engine) Begin() *Tx { return &Tx{engine: e, inner: true} }

func (e *engine) Rollback(t *Tx) { t.ended = true }

func (e *engine) Changes(t *Tx) (*cas.Changes, error) {
	switch {
	case t == nil || t.engine != e && t.engine.client != e.client:
		return nil, fmt.Errorf("%w: tablestore: the transaction is of another store", once.ErrInvalid)
	case t.ended:
		return nil, errEnded
	}
	return &t.changes, nil
}

// commitLimit is how long a commit may take. The service itself ends a request
// after 30 seconds.
const commitLimit = 30 * time.Second

// Commit sends the rows, documents and actions of a transaction. If it has
// messages, their intents are written first.
func (e *engine) Commit(ctx context.Context, t *Tx) error {
	t.ended = true
	rows, err := e.rowsOf(t)
	if err != nil || len(rows)+len(t.actions) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commitLimit)
	defer cancel()
	intents, err := e.intend(ctx, t.changes.Docs())
	if err != nil {
		return err
	}
	_, err = e.submit(ctx, rows, t.actions)
	if err = commitError(err); err != nil && !errors.Is(err, once.ErrOutcomeUnknown) {
		e.endIntents(ctx, intents)
	}
	return err
}

// rowsOf returns how the rows and documents of a transaction are written, if the
// service can take it.
func (e *engine) rowsOf(t *Tx) (rows []write, err error) {
	count, size, place := len(t.actions), t.size, t.place
	for _, c := range t.changes.All() {
		partition, err := e.partitionOf(c.Is.Key)
		if err != nil {
			return nil, err
		}
		if count > 0 && partition != place {
			return nil, fmt.Errorf("%w: tablestore: the transaction writes in the partition %q, and the partition of %s %q is %q: see Options.Partition",
				once.ErrInvalid, place, c.Is.Key.Operation, c.Is.Key.ID, partition)
		}
		w, err := e.write(c.Is, c.Was.Version)
		if err != nil {
			return nil, err
		}
		rows, place = append(rows, w), partition
		count, size = count+1, size+sizeOf(w.row)
		if w.index != nil {
			count, size = count+1, size+sizeOf(*w.index)
		}
	}
	for _, c := range t.changes.Docs() {
		partition, _ := entityOf(c.DocName)
		if count > 0 && partition != place {
			return nil, fmt.Errorf("%w: tablestore: the transaction writes in the partition %q, and the document %s is in %q: a transaction has "+
				"one partition", once.ErrInvalid, place, c.Name, partition)
		}
		w := write{row: writeDoc(c)}
		rows, place = append(rows, w), partition
		count, size = count+1, size+sizeOf(w.row)
	}
	if count > maxActions || size > maxRequest {
		return nil, fmt.Errorf("%w: tablestore: the transaction has %d entities and %d bytes: a request takes %d and %d", once.ErrInvalid,
			count, size, maxActions, maxRequest)
	}
	return rows, nil
}

// commitError returns what an error of a commit says about it.
func commitError(err error) error {
	var refused *actionError
	var response *azcore.ResponseError
	var busy *busyError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &busy): // an earlier try may have been applied
	case errors.As(err, &refused):
		if refused.status == http.StatusPreconditionFailed || refused.mine && isStale(err) {
			return fmt.Errorf("%w: %w", once.ErrConflict, err)
		}
		return err
	case errors.As(err, &response) && response.StatusCode >= 400 && response.StatusCode < 500 && response.StatusCode != http.StatusRequestTimeout:
		if response.StatusCode == http.StatusRequestEntityTooLarge {
			return fmt.Errorf("%w: %w", once.ErrInvalid, err)
		}
		return err
	case neverSent(err):
		return err
	}
	return fmt.Errorf("%w: %w", once.ErrOutcomeUnknown, err)
}
