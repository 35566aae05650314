// Package tablestore is a store in Azure Table storage, through aztables.
//
// # What it implements
//
// A [Store] is a [once.TxStore] whose transaction, [Tx], is one entity group
// transaction: a key commits together with entities and messages of its partition.
// It is also a [once.Lister] of what is not done, a [store.Reopener], a
// [store.Registry], a [store.Shelf] and a [store.Outbox].
//
// # How keys are stored
//
// A key is an entity. It is created by an insert, and replaced only if its ETag is
// still the one that was read. By default the first byte of a key's digest is its
// partition, so 256 partitions share the load. With [Options.Partition] the
// caller decides, so that the entities of the work can be in the same partition.
//
// The properties can be read in any tool for Azure storage:
//
//	Scope, Operation, ID     the key
//	Status                   absent, running, unknown, parked or done
//	Attempt, Owner, Cause    the latest claim
//	Fingerprint              of the input
//	Reason                   of the latest change
//	ContentType, Body00 …    the outcome, in parts of 64 KiB
//	Rejected, Omitted, Sum
//	Created, Updated, Lease, KeepOutcome, KeepKey
//	Open                     the key is running, unknown or parked
//	Firm                     the claim is that of a transaction
//	Due                      when Forget has something to do
//
// Its RowKey is once-key- and its digest. In the default partitions, an entity
// with the RowKey once-open- and the digest says that the key is open. It is
// written and deleted in one transaction with the key's.
//
// # How documents are stored
//
// The shelf, messages of the outbox and leases are documents. The RowKey of one is
// once-doc- and its name, with a dot for each slash. Its bytes are in Body00 and
// the next. Documents that belong to no transaction of work are in the partition
// once-docs, and a message is in the partition of its transaction.
//
// Table storage has no index by which a relay could find messages. So an intent is
// written before the commit of each message: an entity in the partition once-out,
// with the RowKey once-intent- and the name, which says in which Place the message
// will be. It is deleted after the message. docs/decisions/0052 has the reasons.
//
// # What it needs
//
// Requests go to the primary endpoint: the secondary one answers from the past.
// Table storage has no clock in conditions, so the service's clock is learned from
// the Date of its responses that have an x-ms-request-id. It tells whole seconds: a lease may last up to a
// second longer than it was asked for, and is never shorter, whatever the clocks
// of the clients show.
//
// An ETag has the time of its write, which the service documents as rising with
// each change of an entity. A key that was forgotten and is claimed again has a
// later time.
//
// The account of the client needs the rights to read, add, update and delete
// entities, and for Migrate to create the table. The Table API of Cosmos DB was not
// tried.
//
// # Compatibility
//
// As package once.
package tablestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/turn"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// Options configures a Store. The zero value is valid.
type Options struct {
	once.Options // MaxOutcome is at most 704 KiB, the default

	// Partition returns the PartitionKey of a key, so that a transaction can write
	// other entities of that partition. It must always return the same for a key.
	// Default: the first byte of the key's digest, in hexadecimal.
	//
	// With it, List and Forget read the whole table, because Table storage has no
	// index over partitions.
	Partition func(once.Key) string

	// ClaimFirst writes the claim of a transaction before its body is called, so that
	// a body runs only under a claim that was won. It costs a request more. The claim
	// is not extended: Policy.Lease must be longer than the body takes, or calls of one
	// key keep each other from committing.
	ClaimFirst bool
}

// Store is a store in a table. It is safe for concurrent use.
type Store struct {
	cas.Shelving[*Tx]
	cas.Publishing[*Tx]
	engine *engine

	forgetting turn.Turn
	due        place // where Forget goes on; guarded by forgetting
}

var (
	_ once.TxStore[*Tx] = (*Store)(nil)
	_ once.Lister       = (*Store)(nil)
	_ store.Reopener    = (*Store)(nil)
	_ store.Registry    = (*Store)(nil)
	_ store.Shelf       = (*Store)(nil)
	_ store.Outbox[*Tx] = (*Store)(nil)
)

// New returns a store in the table of the client, which may have other entities,
// too, but for RowKeys that begin with "once-". A nil Options means the defaults.
// The client remains the caller's. The store decides itself which of its requests
// are repeated, so the client's retry options do not apply to them.
func New(client *aztables.Client, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	e := &engine{client: client, partition: o.Partition, reads: make(chan struct{}, maxReads)}
	e.clock.Ask = e.ask
	options := o.Options.Ready()
	if o.MaxOutcome <= 0 || o.MaxOutcome > maxOutcome {
		options.MaxOutcome = maxOutcome
	}
	transactions := &cas.Transactions[*Tx]{Store: cas.New(e, &e.clock, options), Engine: e, ClaimFirst: o.ClaimFirst}
	return &Store{
		Shelving: cas.Shelving[*Tx]{Transactions: transactions, Docs: e, MaxDoc: maxDoc},
		// A query is no snapshot: it may have a message, and not the one before it, whose
		// commit returned while the query was at work.
		Publishing: cas.Publishing[*Tx]{Transactions: transactions, Queue: e, MaxDoc: maxDoc, Lags: true},
		engine:     e,
	}
}

// Migrate creates the table if there is none.
func (s *Store) Migrate(ctx context.Context) error {
	return s.engine.call(ctx, func(ctx context.Context) error {
		_, err := s.engine.client.CreateTable(ctx, nil)
		if hasCode(err, aztables.TableAlreadyExists) {
			return nil
		}
		return err
	}).err
}

// maxPages is how many pages a call of Forget reads. The service ends a page
// after a thousand entities that are due, or five seconds.
const maxPages = 100

// Forget deletes keys past their KeepKey, outcomes past their KeepOutcome, and
// documents past their time. It reads the table in pages, because Table storage
// deletes nothing by itself and has no index on times. It reads up to 100 pages,
// and the next call goes on where this one has stopped.
func (s *Store) Forget(ctx context.Context, limit int) (n int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	now, err := s.engine.clock.Now(ctx)
	if err = errors.Join(ctx.Err(), err); err != nil {
		return 0, err
	}
	if err := s.forgetting.Take(ctx); err != nil {
		return 0, err
	}
	defer s.forgetting.Give()
	again := s.due != (place{})
	for pages := 0; n < limit && pages < maxPages; pages++ {
		entities, next, err := s.engine.entities(ctx, fmt.Sprintf("%s and Due le %s", mayBeDue, dateTime(now.Earliest())), s.due, limit-n)
		if err != nil {
			return n, err
		}
		var found []cas.Stored
		for _, text := range entities {
			if at, ok := expiredDoc(text); ok {
				deleted, err := s.engine.deleteDoc(ctx, at)
				if deleted {
					n++
				}
				if err != nil {
					return n, err
				}
			} else if is, err := decode(text); err == nil { // a damaged key is never deleted
				found = append(found, is)
			}
		}
		changed, err := s.engine.forget(ctx, found, now)
		n += changed
		if err != nil {
			return n, err
		}
		if s.due = next; next == (place{}) {
			if !again {
				break
			}
			again = false // from the beginning, once
		}
	}
	return n, nil
}
