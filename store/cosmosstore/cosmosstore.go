// Package cosmosstore is a store in Azure Cosmos DB for NoSQL, through azcosmos.
// The record of a key commits together with other items of its partition key, as
// one transactional batch.
//
// # What it implements
//
// A [Store] is a [once.TxStore] whose transaction is a [Tx], so it works with
// [once.Do] and [once.DoTx]. It is also a [once.Lister], a [store.Reopener], a
// [store.Registry], a [store.Shelf] and a [store.Outbox] with a [store.Bell].
// Package cas has the rules, and says what a transaction is that is one request.
//
// # How keys are stored
//
// A record is an item whose id is "once-" and the UUID of the key. What is stored
// of it is in the property once, as text, so that it can be read in the portal.
// Claims create the item, and every other write replaces it only if it has the
// entity tag that was read. So a stale read leads to a write that is refused, and
// never to a second effect. Reads are batches with one operation, because the client
// sends a batch as a write, to the primary replica of the write region: what they
// return depends neither on the consistency level of the account nor on the
// preferred regions of the client. docs/stores/cosmosdb.md says what of that is
// documented.
//
// The service deletes a record at the end of its KeepKey, by its time to live.
// Records that are Running, Unknown or Parked never expire. Forget removes
// outcomes past their KeepOutcome.
//
// # Partition keys
//
// By default each record has a partition key of its own, so none is hot. For
// [once.DoTx] the items of the work and the record need the same partition key:
// Options.Partition derives it from the key. See [ByScope].
//
// # Time
//
// The clock is that of the service, learned from the Date of its
// responses that have an x-ms-activity-id, which
// has whole seconds. A lease can be longer by a second or two, and is never shorter
// than it was asked for. The wall clock of this machine has no effect.
//
// # What it needs
//
// The first call reads the properties of the container, and refuses one without
// a time to live (set the default to -1, which deletes nothing by itself), with a
// unique key policy, or with a hierarchical partition key. The account must have
// one write region: with several, two regions accept a claim of the same key. The
// package cannot see that, because the client does not tell it.
//
// A throttled request (429) is repeated after the delay that the service asks
// for, until the context of the call ends, or for a minute if it has no deadline.
// Nothing else is repeated.
//
// # Compatibility
//
// As package once.
package cosmosstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// Options configures a Store. The zero value is valid.
type Options struct {
	once.Options

	// Partition returns the partition key of the record of a key, which is a string
	// that the items of its work have too. It must return the same for a key for
	// ever, in all processes: a record is only found where it was written. It has up
	// to 2,048 bytes of UTF-8, without control characters and, because of azcosmos,
	// characters above U+FFFF: for others, calls return once.ErrInvalid. If nil, each
	// record has its own id for a partition key.
	Partition func(once.Key) string

	// ClaimFirst writes the claim of a transaction before its work is called, at the
	// price of a second write. Otherwise two processes may both call the work of a
	// key, of which one commits. The claim is not extended: Policy.Lease must be longer
	// than the work takes, or calls of one key keep each other from committing. See
	// cas.Transactions.
	ClaimFirst bool

	// FeedEvery is how often a relay that waits for messages reads the change feed,
	// with a request for each physical partition. Default: 250 ms. If it is negative,
	// relays poll.
	FeedEvery time.Duration
}

// ByScope is a value of Options.Partition for work on the items of one tenant,
// customer or account, whose id is the Scope of its keys.
func ByScope(k once.Key) string { return k.Scope }

// Store is a store in a container. It is safe for concurrent use.
type Store struct {
	cas.Shelving[*Tx]
	*cas.Publishing[*Tx]
	engine *engine
}

var (
	_ once.TxStore[*Tx] = (*Store)(nil)
	_ once.Lister       = (*Store)(nil)
	_ store.Reopener    = (*Store)(nil)
	_ store.Registry    = (*Store)(nil)
	_ store.Shelf       = (*Store)(nil)
	_ store.Outbox[*Tx] = (*Store)(nil)
	_ store.Bell        = (*Store)(nil)
)

// New returns a store. A nil Options means the defaults. The container remains
// the caller's, and may have other items.
func New(container *azcosmos.ContainerClient, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	e := &engine{container: container, partition: o.Partition, feedEvery: cmp.Or(o.FeedEvery, defaultFeedEvery)}
	e.looks.turn = make(chan struct{}, 1)
	e.clock.Ask = e.ask
	if container == nil {
		e.invalid = fmt.Errorf("%w: cosmosstore: the container is nil", once.ErrInvalid)
	}
	transactions := &cas.Transactions[*Tx]{
		Store:      cas.New(e, &e.clock, o.Options.Ready()),
		Engine:     e,
		ClaimFirst: o.ClaimFirst,
	}
	return &Store{
		Shelving:   cas.Shelving[*Tx]{Transactions: transactions, Docs: e, MaxDoc: maxDoc},
		Publishing: &cas.Publishing[*Tx]{Transactions: transactions, Queue: e, MaxDoc: maxDoc, Lags: true},
		engine:     e,
	}
}

// engine keeps rows and documents as items.
type engine struct {
	container *azcosmos.ContainerClient
	partition func(once.Key) string
	feedEvery time.Duration
	clock     cas.LearnedClock
	invalid   error
	width     width
	looks     looks
	property  atomic.Pointer[string] // the partition key; nil: the container is not checked yet
}

// address returns where the item of a key is.
func (e *engine) address(k once.Key) (id, partition string, err error) {
	id = itemID(k.UUID())
	if e.partition == nil {
		return id, id, nil
	}
	if partition = e.partition(k); len(partition) > maxPartition || !utf8.ValidString(partition) || strings.ContainsFunc(partition, isUnquotable) {
		return "", "", fmt.Errorf("%w: cosmosstore: the partition key %q of %s %q: use up to %d bytes of UTF-8, without control characters "+
			"and characters above U+FFFF, such as emoji", once.ErrInvalid, partition, k.Operation, k.ID, maxPartition)
	}
	return id, partition, nil
}

// isUnquotable reports whether azcosmos writes c into the header for the partition
// key as an escape sequence of Go that JSON does not have.
func isUnquotable(c rune) bool { return c < ' ' || c == 0x7f || c > 0xffff }

// Load returns the row of a key, as the primary replica has it.
func (e *engine) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	if err := e.ready(ctx); err != nil {
		return cas.Stored{}, err
	}
	id, partition, err := e.address(k)
	if err != nil {
		return cas.Stored{}, err
	}
	found, err := e.read(ctx, id, partition)
	if err != nil || found.StatusCode == http.StatusNotFound {
		return cas.Stored{}, err
	}
	row, err := decode(found.ResourceBody)
	return cas.Stored{Row: row, Version: string(found.ETag)}, err
}

// read reads an item at the primary replica. The status of what it returns is
// that of a found item, or 404.
func (e *engine) read(ctx context.Context, id, partition string) (found azcosmos.TransactionalBatchResult, err error) {
	batch := e.container.NewTransactionalBatch(azcosmos.NewPartitionKeyString(partition))
	batch.ReadItem(id, nil)
	results, err := e.execute(ctx, batch)
	if err != nil {
		return found, err
	}
	if found = results[0]; found.StatusCode != http.StatusOK && found.StatusCode != http.StatusNotFound {
		err = fmt.Errorf("cosmosstore: the service answered the read of %s with status %d", id, found.StatusCode)
	}
	return found, err
}

// Put creates or replaces the item of a row.
func (e *engine) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	if err := e.ready(ctx); err != nil {
		return cas.Stored{}, err
	}
	id, partition, text, err := e.item(ctx, row)
	if err != nil {
		return cas.Stored{}, err
	}
	if len(text) > maxItem {
		return cas.Stored{}, fmt.Errorf("%w: cosmosstore: the item has %d bytes, and the service takes %d", once.ErrOutcomeRefused,
			len(text), maxItem)
	}
	version, err := e.put(ctx, id, partition, text, over)
	if statusOf(err) == http.StatusRequestEntityTooLarge {
		err = fmt.Errorf("%w: %w", once.ErrOutcomeRefused, err)
	}
	if err != nil {
		return cas.Stored{}, err
	}
	return cas.Stored{Row: row, Version: version}, nil
}

// put creates an item or, if over is not empty, replaces it if it has that entity
// tag. It returns the new one, or cas.ErrStale.
func (e *engine) put(ctx context.Context, id, partition string, item []byte, over string) (version string, err error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	var put azcosmos.ItemResponse
	sent, key := time.Now(), azcosmos.NewPartitionKeyString(partition)
	if over == "" {
		put, err = e.container.CreateItem(ctx, key, item, nil)
	} else {
		tag := azcore.ETag(over)
		put, err = e.container.ReplaceItem(ctx, key, id, item, &azcosmos.ItemOptions{IfMatchEtag: &tag})
	}
	e.learn(sent, put.RawResponse, err)
	switch status := statusOf(err); {
	case status == http.StatusConflict, status == http.StatusPreconditionFailed,
		status == http.StatusNotFound && over != "": // it has expired
		return "", cas.ErrStale
	}
	return string(put.ETag), err
}

// item returns the item of a row.
func (e *engine) item(ctx context.Context, row cas.Row) (id, partition string, text []byte, err error) {
	now, err := e.clock.Now(ctx)
	if err != nil {
		return "", "", nil, err
	}
	if id, partition, err = e.address(row.Key); err != nil {
		return "", "", nil, err
	}
	text, err = encode(row, id, *e.property.Load(), partition, now)
	return id, partition, text, err
}

// ready checks once that the container is one that records can be in.
func (e *engine) ready(ctx context.Context) error {
	if err := errors.Join(e.invalid, ctx.Err()); err != nil || e.property.Load() != nil {
		return err
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	sent := time.Now()
	is, err := e.container.Read(ctx, nil)
	e.learn(sent, is.RawResponse, err)
	if err != nil {
		return fmt.Errorf("cosmosstore: read the properties of the container: %w", err)
	}
	property, err := e.check(is.ContainerProperties)
	if err != nil {
		return fmt.Errorf("%w: cosmosstore: the container %s %w", once.ErrInvalid, e.container.ID(), err)
	}
	e.property.Store(&property)
	return nil
}

// check returns the property that is the partition key.
func (e *engine) check(is *azcosmos.ContainerProperties) (string, error) {
	paths := is.PartitionKeyDefinition.Paths
	if len(paths) != 1 || strings.Count(paths[0], "/") != 1 || strings.ContainsAny(paths[0], `"\`) {
		return "", fmt.Errorf("has the partition key %q: it has to be one property of the first level", paths)
	}
	property := strings.TrimPrefix(paths[0], "/")
	switch {
	case property == "ttl" || property == "once" || property == "onceBody":
		return "", fmt.Errorf("has the partition key %s, which is a property of records", paths[0])
	case property == "id" && e.partition != nil:
		return "", errors.New("has the partition key /id, so Options.Partition cannot be used")
	case is.DefaultTimeToLive == nil:
		return "", errors.New("has no time to live, so records would stay for ever: set its default to -1")
	case is.UniqueKeyPolicy != nil && len(is.UniqueKeyPolicy.UniqueKeys) > 0:
		return "", errors.New("has unique keys, which all records lack, so the second one would be refused")
	}
	return property, nil
}

// Forget removes outcomes that are past their KeepOutcome. The service deletes
// keys by itself.
func (s *Store) Forget(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	now, err := s.engine.now(ctx)
	if err != nil {
		return 0, err
	}
	rows, _, err := s.engine.query(ctx, "c.once.outcomeUntil <= @now", limit, leaveOut(new([]error)), parameter("@now", text(now.Earliest())))
	forgotten := 0
	for i := 0; i < len(rows) && err == nil; i++ {
		var is cas.Stored
		if is, err = s.engine.Load(ctx, rows[i].Key); errors.Is(err, once.ErrCorrupt) {
			err = nil // a damaged outcome is never removed
			continue
		}
		if err != nil || !isPastOutcome(is.Row, now) {
			continue
		}
		if _, err = s.engine.Put(ctx, is.Row, is.Version); errors.Is(err, cas.ErrStale) {
			err = nil
			continue
		}
		forgotten++
	}
	return forgotten, err
}
