// Package dynamostore is a store in DynamoDB, through the AWS SDK for Go v2.
//
// # What it implements
//
// A [Store] is a [once.TxStore] of [*Tx], so it works with [once.Do] and with
// [once.DoTx]: a transaction collects writes, and one TransactWriteItems applies
// them together with the record of the key. It is also a [once.Lister] of what is
// not done, a [store.Reopener], and has a [store.Registry], a [store.TxShelf] and
// [store.Positions], so consumers may set messages aside, and keep positions, and
// a [store.Outbox] with a [store.Bell].
//
// # How keys are stored
//
// A record is an item, and its attributes can be read in the console. A claim is
// a PutItem on the condition that there is no item, and its refusal returns the
// item. Later writes are conditional on the attribute version, which is random.
// Reads are strongly consistent. The items of open records, which are Running,
// Unknown or Parked, have an attribute more, by which they are in an index for
// List. The index lags behind the table: List may miss a claim of the last
// moments, and show a record as it was. Messages of the outbox are in the index
// too, for relays. Nothing else reads it.
//
// [Store.CreateTable] makes the table, and [Template] prints it. Records may also
// be in a table of the caller's own: see [Options].
//
// # Time
//
// DynamoDB has no clock in conditions. Its time is learned from the Date of its
// responses that have an x-amzn-RequestId, which has whole seconds: see [cas.LearnedClock]. So a lease may be
// longer by two seconds, and is never shorter, whatever the clock of this machine
// shows. The first call of a process, and one after a minute without any, makes
// a GetItem more.
//
// DynamoDB itself deletes records that are past their KeepKey, within days, so
// Forget has nothing to do. No answer depends on when it does. Open records have
// no time of deletion.
//
// # Transactions
//
// See [cas.Transactions] for when the work is entered. A transaction has at most
// 100 items and 4 MB. While the service throttles, calls wait for as long as
// their context allows, up to a minute.
//
// # What it needs
//
// The store needs dynamodb:GetItem and dynamodb:PutItem on the table, and
// dynamodb:Query on its index. Relays also need dynamodb:DeleteItem, and what
// [Store.HearOutbox] names. A transaction needs in addition what its own
// writes need. A table that is replicated to other Regions must be written in one
// Region, because replicas accept writes that contradict each other.
//
// # Compatibility
//
// As package once.
package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// Options configures a Store. The zero value is valid.
type Options struct {
	// Options has a MaxOutcome of 384 KiB by default, because an item has at most
	// 400 KB.
	once.Options

	// Table is the table of the records. Default: "once".
	Table string

	// PartitionKey and SortKey are the names of the keys of the table, which are
	// strings. Defaults: "pk", and no sort key.
	PartitionKey, SortKey string

	// Prefix begins the partition keys of records, so that they cannot be those of
	// other items. Stores with different prefixes share nothing. Default:
	// "once#".
	Prefix string

	// Index is the name of the index of open records, and of the attribute that is
	// its partition key. Its sort key is PartitionKey. Default: "once_open".
	Index string

	// Expiry is the attribute with the time after which DynamoDB deletes an item: a
	// table has one. Default: "expires".
	Expiry string

	// ClaimFirst makes transactions write their claim before the work runs, which
	// costs a second write. Then only one runs at a time. The claim is not extended:
	// Policy.Lease must be longer than the work takes, or calls of one key keep each
	// other from committing.
	ClaimFirst bool

	// Streams reads the stream of the table, for [Store.HearOutbox]. Default: a client
	// with the region, endpoint, credentials and HTTP client of the one for the table.
	// It is needed if that has an endpoint for tables only.
	Streams *dynamodbstreams.Client

	// CommitTimeout bounds a commit, which the end of the caller's context does not
	// end. Default: 30 seconds.
	CommitTimeout time.Duration
}

// ready returns the options with their defaults.
func (o Options) ready() Options {
	for _, name := range []struct {
		is *string
		or string
	}{{&o.Table, "once"}, {&o.PartitionKey, "pk"}, {&o.Prefix, "once#"}, {&o.Index, "once_open"}, {&o.Expiry, "expires"}} {
		if *name.is == "" {
			*name.is = name.or
		}
	}
	if o.CommitTimeout <= 0 {
		o.CommitTimeout = 30 * time.Second
	}
	if o.MaxOutcome <= 0 {
		o.MaxOutcome = 384 << 10
	}
	return o
}

// names are what two stores of the same records have in common.
func (o *Options) names() [6]string {
	return [...]string{o.Table, o.PartitionKey, o.SortKey, o.Prefix, o.Index, o.Expiry}
}

// check refuses names that an item cannot have twice.
func (o *Options) check() error {
	names := slices.Clone(attributes)
	for _, name := range []string{o.PartitionKey, o.SortKey, o.Index, o.Expiry} {
		if slices.Contains(names, name) {
			return fmt.Errorf("%w: dynamostore: two attributes of a record would be named %q", once.ErrInvalid, name)
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return nil
}

// Store is a store in DynamoDB. It is safe for concurrent use.
type Store struct {
	cas.Consuming[*Tx]
	*cas.Publishing[*Tx]
	engine *engine
}

var (
	_ once.TxStore[*Tx]    = (*Store)(nil)
	_ once.Lister          = (*Store)(nil)
	_ store.Reopener       = (*Store)(nil)
	_ store.Registry       = (*Store)(nil)
	_ store.TxShelf[*Tx]   = (*Store)(nil)
	_ store.Positions[*Tx] = (*Store)(nil)
	_ store.Outbox[*Tx]    = (*Store)(nil)
	_ store.Bell           = (*Store)(nil)
)

// New returns a store. A nil Options means the defaults. The client remains the
// caller's. It may repeat requests whose reply was lost, which changes nothing.
func New(client *dynamodb.Client, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	e := &engine{client: client, options: o.ready()}
	e.invalid = e.options.check()
	if client == nil {
		e.invalid = errors.Join(e.invalid, fmt.Errorf("%w: dynamostore: the client is nil", once.ErrInvalid))
	}
	e.clock.Ask = func(ctx context.Context) error {
		_, err := e.get(ctx, [16]byte{})
		return err
	}
	transactions := &cas.Transactions[*Tx]{Store: cas.New(e, &e.clock, e.options.Options.Ready()), Engine: e,
		ClaimFirst: e.options.ClaimFirst}
	return &Store{
		cas.Consuming[*Tx]{Shelving: cas.Shelving[*Tx]{Transactions: transactions, Docs: e, MaxDoc: maxDoc}},
		&cas.Publishing[*Tx]{Transactions: transactions, Queue: e, MaxDoc: maxDoc, Lags: true},
		e,
	}
}

// maxDoc leaves room for the other attributes of an item.
const maxDoc = 384 << 10

// Begin returns a transaction that the caller ends, for ClaimTx and SettleTx.
func (s *Store) Begin() *Tx { return &Tx{engine: s.engine, callers: true} }

// Forget returns 0, because DynamoDB itself deletes what is past its time.
func (s *Store) Forget(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	return 0, errors.Join(s.engine.invalid, ctx.Err())
}
