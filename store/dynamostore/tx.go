package dynamostore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// Tx is a transaction. It collects writes, and its commit applies all of them or
// none. It reads nothing: what the work decides by has to be in the conditions of
// its writes. Its methods may be called concurrently.
type Tx struct {
	engine  *engine
	callers bool // the caller ends it, and not Transact

	mu      sync.Mutex
	writes  []types.TransactWriteItem
	changes cas.Changes
	ended   bool
}

// maxItems is how many items a transaction may write.
const maxItems = 100

// Put adds writes of whole items.
func (t *Tx) Put(puts ...types.Put) error {
	return collect(t, puts, func(p *types.Put) types.TransactWriteItem { return types.TransactWriteItem{Put: p} })
}

// Update adds changes of items.
func (t *Tx) Update(updates ...types.Update) error {
	return collect(t, updates, func(u *types.Update) types.TransactWriteItem { return types.TransactWriteItem{Update: u} })
}

// Delete adds deletions of items.
func (t *Tx) Delete(deletes ...types.Delete) error {
	return collect(t, deletes, func(d *types.Delete) types.TransactWriteItem { return types.TransactWriteItem{Delete: d} })
}

// Check adds conditions on items that the transaction does not write.
func (t *Tx) Check(checks ...types.ConditionCheck) error {
	return collect(t, checks, func(c *types.ConditionCheck) types.TransactWriteItem {
		return types.TransactWriteItem{ConditionCheck: c}
	})
}

func collect[Write any](t *Tx, writes []Write, item func(*Write) types.TransactWriteItem) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return errEnded
	}
	for i := range writes {
		write := writes[i]
		t.writes = append(t.writes, item(&write))
	}
	return nil
}

var errEnded = fmt.Errorf("%w: dynamostore: the transaction has ended", once.ErrInvalid)

// Commit sends a transaction that Begin returned, and ends it. ErrConflict means
// that nothing was applied because a key has changed since it was read, or
// because of a concurrent request on one of the items. ErrOutcomeUnknown means
// that it is not known whether it was applied.
func (t *Tx) Commit(ctx context.Context) error {
	if !t.callers {
		return errTransacts
	}
	return t.engine.Commit(ctx, t)
}

// Rollback ends a transaction that Begin returned, and drops its writes.
func (t *Tx) Rollback() error {
	if !t.callers {
		return errTransacts
	}
	t.engine.Rollback(t)
	return nil
}

var errTransacts = fmt.Errorf("%w: dynamostore: Transact ends this transaction, and not its body", once.ErrInvalid)

// ConditionError is returned when a condition of a write of the work did not
// hold. Nothing was applied.
type ConditionError struct {
	Write types.TransactWriteItem         // whose condition did not hold
	Item  map[string]types.AttributeValue // as it is, if the write asks for it, and if there is one

	err error
}

func (e *ConditionError) Error() string {
	table := ""
	switch w := e.Write; {
	case w.Put != nil:
		table = *w.Put.TableName
	case w.Update != nil:
		table = *w.Update.TableName
	case w.Delete != nil:
		table = *w.Delete.TableName
	case w.ConditionCheck != nil:
		table = *w.ConditionCheck.TableName
	}
	return fmt.Sprintf("dynamostore: nothing was applied, because the condition of a write to %s does not hold: %v", table, e.err)
}

func (e *ConditionError) Unwrap() error { return e.err }

// Begin returns a transaction that Transact ends.
func (e *engine) Begin() *Tx { return &Tx{engine: e} }

// Changes returns what the transaction holds for keys.
func (e *engine) Changes(tx *Tx) (*cas.Changes, error) {
	switch {
	case tx == nil || tx.engine.options.names() != e.options.names() || tx.engine.place() != e.place():
		return nil, fmt.Errorf("%w: dynamostore: the transaction belongs to another store", once.ErrInvalid)
	case tx.hasEnded():
		return nil, errEnded
	}
	return &tx.changes, e.invalid
}

// place is where the tables of a client are, as far as the client tells.
func (e *engine) place() (at [2]string) {
	if e.client == nil {
		return at
	}
	o := e.client.Options()
	return [2]string{o.Region, aws.ToString(o.BaseEndpoint)}
}

func (t *Tx) hasEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// end ends the transaction, and reports whether it had ended before.
func (t *Tx) end() (before bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, t.ended = t.ended, true
	return before
}

// Rollback drops the writes of a transaction.
func (e *engine) Rollback(tx *Tx) { tx.end() }

// Commit sends a transaction. The token makes repeated attempts of its request
// one: DynamoDB keeps it for ten minutes, which is longer than a commit takes.
func (e *engine) Commit(ctx context.Context, tx *Tx) error {
	if tx.end() {
		return errEnded
	}
	items, own, err := e.items(tx)
	if err != nil || len(items) == 0 {
		return err
	}
	token := rand.Text()
	in := &dynamodb.TransactWriteItemsInput{TransactItems: items, ClientRequestToken: &token}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.options.CommitTimeout)
	defer cancel()
	var made attempts
	_, err = patiently(ctx, func() (*dynamodb.TransactWriteItemsOutput, error) {
		return e.client.TransactWriteItems(ctx, in, e.watch(&made))
	})
	inProgress := (*types.TransactionInProgressException)(nil)
	switch {
	case err == nil:
		return nil
	case made.unanswered || errors.As(err, &inProgress):
		// A refusal says nothing of an earlier attempt that may still be on its way.
		return fmt.Errorf("%w: dynamostore: %w", once.ErrOutcomeUnknown, err)
	}
	return refusal(err, items, own)
}

// items returns what a transaction sends: first the rows of keys and documents,
// which are own in number, and then the writes of the work.
func (e *engine) items(tx *Tx) (items []types.TransactWriteItem, own int, err error) {
	for _, change := range tx.changes.All() {
		put, _, err := e.put(change)
		if err != nil {
			return nil, 0, err
		}
		items = append(items, types.TransactWriteItem{Put: put})
	}
	for _, change := range tx.changes.Docs() {
		items = append(items, e.docWrite(change))
	}
	own = len(items)
	items = append(items, tx.writes...)
	bytes := 0
	for _, it := range items {
		bytes += sizeOfWrite(it)
	}
	if len(items) > maxItems || bytes > maxTransaction {
		return nil, 0, fmt.Errorf("%w: dynamostore: the transaction has %d items, of them %d of the store, and about %d bytes, and DynamoDB "+
			"takes %d items and %d bytes", once.ErrInvalid, len(items), own, bytes, maxItems, maxTransaction)
	}
	return items, own, nil
}

func sizeOfWrite(w types.TransactWriteItem) int {
	switch {
	case w.Put != nil:
		return size(w.Put.Item)
	case w.Update != nil:
		return size(w.Update.Key) + size(w.Update.ExpressionAttributeValues)
	case w.Delete != nil:
		return size(w.Delete.Key)
	case w.ConditionCheck != nil:
		return size(w.ConditionCheck.Key)
	}
	return 0
}

// Codes of the reasons for which a transaction is canceled.
const (
	codeNone      = "None"
	codeCondition = "ConditionalCheckFailed"
	codeConflict  = "TransactionConflict"
	codeThrottled = "ThrottlingError"
	codeExceeded  = "ProvisionedThroughputExceeded"
)

func codeOf(r types.CancellationReason) string {
	if r.Code == nil {
		return codeNone
	}
	return *r.Code
}

// isThrottled reports whether a transaction was canceled for no other reason
// than too many requests.
func isThrottled(canceled *types.TransactionCanceledException) (is bool) {
	for _, reason := range canceled.CancellationReasons {
		switch codeOf(reason) {
		case codeNone:
		case codeThrottled, codeExceeded:
			is = true
		default:
			return false
		}
	}
	return is
}

// refusal returns the error of a transaction that was not applied.
func refusal(err error, items []types.TransactWriteItem, own int) error {
	canceled := (*types.TransactionCanceledException)(nil)
	if !errors.As(err, &canceled) {
		return explain(err)
	}
	var conflict bool
	var condition error
	for i, reason := range canceled.CancellationReasons {
		switch code := codeOf(reason); {
		case code == codeConflict, code == codeCondition && i < own:
			conflict = true
		case code == codeCondition && condition == nil && i < len(items):
			condition = &ConditionError{Write: items[i], Item: reason.Item, err: err}
		}
	}
	switch {
	case conflict: // also if a condition failed, which the concurrent work may have made so
		return fmt.Errorf("%w: dynamostore: %w", once.ErrConflict, err)
	case condition != nil:
		return condition
	}
	return fmt.Errorf("dynamostore: %w", err)
}
