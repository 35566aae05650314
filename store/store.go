// Package store has what a store can do besides remembering keys. Each capability
// is an interface of its own, and optional. What every store does is in package
// once: [once.Store], and [once.TxStore] for a store in a transactional database.
//
// This page is for authors of stores. docs/writing-a-store.md has the steps, and
// package storetest has the rules as tests. Package cas makes a store of an engine
// that has compare-and-swap.
//
// # Capabilities
//
//	interface       stores   gives                          without it
//	once.TxStore    all      DoTx, InTx, inbox.Tx           only Do and inbox.Do
//	once.Replayer   tiered   answers without the store      Redelivered work is read
//	once.Lister     all      lists of records               no reconciler, no quota
//	Reopener        all      done work can run again        Reopen fails
//	ManyGetter      SQL      records of many keys           they are read one by one
//	IDFinder        all      keys by a part of their ID     all records are read
//	Archivable      all      records, before Forget         no Janitor.Archive
//	Registry        all      who consumes which source      names are not checked
//	RegistryEditor  all      people rename and retire       only programs rename
//	Shelf           all      messages that are set aside    the broker's dead letters
//	ShelfBatch      all      several changes at once        they are made one by one
//	TxShelf         all      the same in a transaction      no order behind failures
//	Positions       all      how far a consumer has come    no Consumer.Checkpoint
//	Outbox          all      messages in a transaction      no outbox.New
//	Relayable       all      the outbox, seen by relays     no outbox.Relay
//	OutboxArchive   SQL      an archive of the outbox       the ending Archive deletes
//	HandOver        all      to consumers in one commit     it takes two commits
//	Bell            all      relays are woken               relays poll
//	Presence        SQL      a relay's end is seen at once  its leases lapse
//	OutboxLog       pgstore  the outbox in the log          relays read the table
//	LogLag          pgstore  how far a reader is behind     no metrics of the log
//
// In this table, "all" are memstore, sqlstore and pgstore, and SQL means the last
// two. The others have these:
//
//	cosmosstore  once.TxStore, once.Lister, Reopener, Registry, Shelf, Outbox,
//	             Relayable, Bell
//	dynamostore  once.TxStore, once.Lister of open records, Reopener, Registry,
//	             Shelf, TxShelf, Positions, Outbox, Relayable, Bell
//	natsstore    once.Lister of open records, Reopener
//	redisstore   once.TxStore, once.Lister of open records, Reopener, Registry,
//	             Shelf, TxShelf, Positions, Outbox, Relayable, Bell
//	tablestore   once.TxStore, once.Lister of open records, Reopener, Registry,
//	             Shelf, Outbox, Relayable
//	tiered       once.Replayer, and what the store has that it wraps
//
// Open records suffice for the reconciler, and not for a quota. TxStore, TxShelf,
// Positions and Outbox have the store's type of transaction as a type parameter.
//
// Callers find a capability with [once.As], also through wrappers, and choose at
// their start what they do without it. Start with none, and add those that your
// users need: each has its own cases in storetest.
//
// # What is optional within the contract
//
// A store may ignore [once.ClaimHints]. It needs nothing for sealing: the packages
// above seal what they store, with SealOutgoing, SealShelved and their reverse.
//
// # Rules for all methods
//
// They are those of package once:
//
//   - Methods may be called concurrently, from any number of processes.
//   - Each call is atomic, and durable when it returns nil.
//   - After an error that is not named, the call may or may not have been applied.
//     Adapters do not retry: their callers do.
//   - Time is the store's clock.
//   - Slices in arguments belong to the caller. Slices in results do, too.
//
// The compatibility promise is that of package once.
package store
