package once

import (
	"context"
	"log/slog"
	"time"

	"github.com/effectively-once/once/internal/flight"
	"github.com/effectively-once/once/internal/lease"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/rerun"
	"github.com/effectively-once/once/internal/watch"
)

// Store remembers keys. It is the contract of a store adapter. An adapter only
// translates it: waiting, heartbeats, retries and policies are in [Do] and
// [DoTx].
//
// Methods may be called concurrently, from any number of processes. Each acts
// atomically, and is durable when it returns nil. If it returns an error that is
// not named here, the call may or may not have been applied; repeating it is
// always safe, and adapters leave that to their caller. A call whose context has
// already ended returns an error and changes nothing. Keys are validated before
// they arrive. Slices in arguments belong to the caller: do not change them, or
// keep them after the call returns. Slices in results belong to the caller too.
//
// Use the store's own clock. Leases and retention arrive as durations, so that
// the clocks of clients decide nothing. Time alone changes a record in three
// ways: when its lease lapses, a Running record is Unknown; after KeepOutcome, a
// Done record is Expired; after KeepKey, a key that is Done, Expired or released
// is forgotten.
type Store interface {
	// Claim takes a key if it is free, and otherwise returns the record that is in
	// the way. The claim was won if the returned record is Running with the Owner of
	// the request. A unique index decides who wins: insert first, and never decide
	// by reading.
	//
	//	the record is              Claim
	//	Absent, never seen         takes the key; Attempt is 1
	//	Absent, released           takes the key, raises Attempt and keeps Created
	//	past its KeepKey           takes the key as if it was never seen
	//	Running or Unknown,        changes nothing and returns the record: the reply
	//	of the same Owner          to an earlier call was lost
	//	Running                    changes nothing and returns the record
	//	Unknown                    takes the key if the request's Attempt is the
	//	                           record's, raises Attempt and keeps Created;
	//	                           otherwise changes nothing and returns the record
	//	Parked, Done, Expired      changes nothing and returns the record
	//	Absent, released by the    changes nothing and returns the Absent record: the
	//	same Owner                 call is late
	//
	// To take a key is to make it Running, to set its lease, fingerprint, cause,
	// owner and Updated, and to clear the rest. Created is the time of the first
	// claim. Age, Created and Updated of a Done record in the way may be zero, because
	// a cache in front of a store does not know them.
	Claim(context.Context, ClaimRequest) (Record, error)

	// Extend sets the lease to end d from now, and Updated. It returns ErrLeaseLost
	// if the lease has lapsed, which is final, or if the fence is not current.
	Extend(ctx context.Context, fence Fence, d time.Duration) error

	// Settle ends an attempt. It changes a record that is Running (even if its lease
	// has lapsed), Unknown or Parked, and only if the fence is current. It returns
	// nil if the same settlement was applied before: for Done, one with the same
	// Outcome in all its fields, unless that has expired and cannot be compared. In
	// all other cases it changes nothing and returns ErrLeaseLost: Done is final, and
	// Parked does not become Unknown again.
	//
	// Settle sets Status, Reason and Updated. Unknown ends the lease now. A record
	// that becomes Absent keeps its Attempt, and its Owner inside the store: that
	// tells a late call of this Owner from a new one. Readers get a zero Owner. A
	// Status that Settlement does not name is ErrInvalid.
	//
	// ErrOutcomeRefused means that nothing was changed and that repeating is
	// pointless, because the store can never hold this outcome: it is too large for
	// its column or protocol, or violates a constraint. It may be accepted without
	// its body. A store that cannot be reached, or does not answer in time, has
	// refused nothing.
	Settle(context.Context, Settlement) error

	// Get returns the record of a key as it is now, and the zero Record for a key
	// that was never seen or is forgotten. It never reads from a replica or from an
	// old snapshot.
	Get(context.Context, Key) (Record, error)

	// Forget drops outcomes past their KeepOutcome and keys past their KeepKey, at
	// most limit records, in one short transaction. It returns how many it changed;
	// fewer than limit means that nothing is left to do. It may be interrupted
	// anywhere. It never touches records that are Running, Unknown or Parked. A
	// limit below 1 is ErrInvalid.
	Forget(ctx context.Context, limit int) (int, error)

	// Options returns what [Options.Ready] returned, the same pointer every time. A
	// wrapper forwards it.
	Options() *Options
}

// TxStore is a store in a transactional database: the record of a key commits
// together with the rows of its work. Tx is the transaction that users know, for
// example *sql.Tx or pgx.Tx.
type TxStore[Tx any] interface {
	Store

	// Transact begins a transaction, makes the claims, calls body with the records
	// that they returned, applies the settlements that body returns, and commits. It
	// returns the records as claimed. If none of the claims is won, it rolls back and
	// does not call body.
	//
	// If body fails, panics or ends its goroutine, everything is rolled back, and
	// its error is returned, possibly wrapped. A claim that body does not settle is
	// committed as Running. ErrConflict means that the database rolled everything
	// back, and that the same call may succeed. ErrOutcomeUnknown means that COMMIT
	// was sent and it is not known whether it was applied. After any other error
	// nothing was committed.
	//
	// A claim may meet a transaction that is in flight on its key. It waits for it,
	// up to ClaimRequest.Wait or as near to that as the engine can be told, or it
	// returns Running with LeaseLeft 0. A claim whose own lease lapsed while it
	// waited comes back Unknown with the Owner of the request, and is won all the
	// same, here and in ClaimTx.
	//
	// A store whose transaction is one conditional request has no transactions in
	// flight. It calls body for a key that it has read to be free, unless the request
	// is Firm, and returns ErrConflict if the key has changed when it commits.
	//
	// The end of ctx does not end the transaction: only Transact ends it. Each
	// settlement must change its own row, or everything is rolled back with
	// ErrLeaseLost. Otherwise a transaction that the database silently began anew
	// could be committed.
	Transact(ctx context.Context, rs []ClaimRequest, body func(Tx, []Record) ([]Settlement, error)) ([]Record, error)

	// ClaimTx is Claim for each request, inside a transaction that the caller began
	// and ends. A claim that is lost leaves that transaction usable.
	ClaimTx(ctx context.Context, tx Tx, rs []ClaimRequest) ([]Record, error)

	// SettleTx is Settle for each settlement, inside a transaction that the caller
	// began and ends.
	SettleTx(ctx context.Context, tx Tx, ss []Settlement) error
}

// Replayer is an optional capability of a store, such as one with a cache in
// front: it may know that a key is done without asking the database.
type Replayer interface {
	// Replay returns the Done record of a key as Claim would return it. It returns
	// false if it does not know one, and then a claim decides.
	Replay(context.Context, Key) (Record, bool)
}

// Lister is an optional capability of a store: it lists records. Without it,
// stuck keys can only be found by name. A store without an index of all records
// lists those that are Running, Unknown or Parked, and one by its UUID, and
// returns [ErrInvalid] for a query that may select others.
type Lister interface {
	// List returns records in a stable order that only the store knows, without the
	// bodies of outcomes. A page is bounded work, so it may be short or empty and not
	// be the last. If q.Cause or q.UUID is set, other records cost nothing. If
	// q.Status has only Running, Unknown and Parked, records in other states cost
	// nothing.
	List(ctx context.Context, q RecordQuery) (RecordPage, error)
}

// RecordPage is a part of a list.
type RecordPage struct {
	Records []Record
	Next    Key // RecordQuery.After of the next page; zero: there is none

	// Damaged has an error for each record that the page met and could not read. It
	// wraps [ErrCorrupt] and names the record. Such a record is in no Records,
	// whatever the query selects, and keeps no other from being listed.
	Damaged []error
}

// RecordQuery selects records; zero fields select all.
type RecordQuery struct {
	Operation string        // exactly
	Scopes    []string      // any of them
	Status    []Status      // any of them
	Unchanged time.Duration // for at least this long
	Cause     [16]byte      // exactly; zero: any
	UUID      [16]byte      // Key.UUID, exactly; zero: any
	After     Key           // Next of the page before, or any other key
	Limit     int           // default 100, at most 1,000
}

// ClaimRequest asks for a key.
type ClaimRequest struct {
	Fence       // Attempt: take over this attempt if it is Unknown; 0: never take over
	Lease       time.Duration
	Wait        time.Duration // Claim, Transact: how long to wait for a transaction on the key; 0: as short as possible
	Fingerprint []byte        // empty: none

	// Cause is the UUID of the key whose work put the message that this claim is
	// for. It is recorded for people who follow a unit of work, and decides nothing:
	// claims of a key with different causes are duplicates. Zero: none.
	Cause [16]byte

	// Firm asks for a claim that is written before body is called. It is for Transact
	// of a store that otherwise writes nothing before its commit: an earlier Transact
	// of this Owner may still be on its way there, and the claim is what refuses it.
	// It also renews a claim that this Owner has. Other stores ignore it, because a
	// claim of theirs waits for the earlier transaction.
	Firm bool

	ClaimHints // optional: an adapter may ignore them
}

// ClaimHints allow a store to work faster. An adapter may ignore all of them, and
// does so until measurements show that one pays.
type ClaimHints struct {
	// Expected is how the attempt will end if all goes well, as far as it is known,
	// without a Fence. A store may write parts of it together with the claim.
	Expected *Settlement

	// Speculative allows a Transact of one request with Expected set to call body
	// before the claim is won. body then gets the record that the claim of a new key
	// would return, without its times, and settles as Expected says except for the
	// Outcome, or fails. If the claim is lost, no statement of body takes effect and
	// its error is ignored; if the key then turns out to be free, body is called
	// again.
	Speculative bool

	// AsyncCommit allows Claim to return before the claim is on disk: a crash of the
	// database may forget it.
	AsyncCommit bool
}

// Settlement ends the attempt that its Fence names.
type Settlement struct {
	Fence
	Status      Status        // Done, Parked, Unknown; or Absent: free again, the attempt stays counted
	Outcome     Outcome       // Done only
	KeepOutcome time.Duration // Done: how long the outcome is kept
	KeepKey     time.Duration // Done and Absent: how long the key, or the count of its attempts, is kept
	Reason      string
}

// Options are the options that all stores share. Adapters embed them in their
// own. The zero value works.
type Options struct {
	Logger     *slog.Logger // for trouble that no caller sees; default: slog.Default(), read when something is logged
	Observer   Observer     // sees every call: for metrics and spans; default: none
	MaxOutcome int          // bytes of an outcome's body; default 1 MiB
	Secret     []byte       // keys fingerprints, if set. After a change, repeats of older keys mismatch
	Sealing    Sealing      // encrypts what is stored; default: nothing is encrypted

	flights *flight.Group[flightKey, Record]
	reruns  *rerun.Line
	leases  *lease.Queue
}

// flightKey includes the input: a duplicate with another input must learn of
// the mismatch from the record, whichever of them came first.
type flightKey struct {
	key         Key
	fingerprint [32]byte
}

// Ready returns a copy with the defaults, and with the state that the calls of one
// process share. An adapter calls it once, in its constructor.
func (o Options) Ready() *Options {
	o.Logger = logs.Of(o.Logger)
	if o.MaxOutcome <= 0 {
		o.MaxOutcome = 1 << 20
	}
	o.flights, o.reruns, o.leases = new(flight.Group[flightKey, Record]), rerun.NewLine(), new(lease.Queue)
	return &o
}

// Turn waits for this transaction's turn to run again after ErrConflict, and
// returns a function that ends the turn. Transactions of one process that
// conflict take turns, because transactions that deadlocked once deadlock again
// when they run side by side. It is for code that runs transactions without
// [DoTx].
func (o *Options) Turn(ctx context.Context) (leave func(), err error) { return o.reruns.Enter(ctx) }

// Pack makes an outcome ready to be stored with a key whose record has this
// fingerprint: it adds the checksum, and seals the outcome if Sealing says so. It
// is for code that settles claims without [Do] and [DoTx]. If the outcome is too
// large, Pack returns it Omitted, and ok is false.
func (o *Options) Pack(k Key, fingerprint []byte, out Outcome) (ready Outcome, ok bool) {
	return o.pack(k, k.UUID(), fingerprint, out)
}

func (o *Options) pack(k Key, id [16]byte, fingerprint []byte, out Outcome) (ready Outcome, ok bool) {
	if ok = len(out.Body) <= o.MaxOutcome; !ok {
		out.Body, out.Omitted = nil, true
	}
	if o.Sealing.Seals(SealOutcomes) {
		out = o.Sealing.seal(k, fingerprint, out)
	}
	out.Sum = out.checksum(id)
	return out, ok
}

// Tell logs a step of a key at level debug, and tells an [EventObserver]. It is
// for code that changes records without the functions of this package.
func (o *Options) Tell(ctx context.Context, e Event) {
	if o.Logger.Enabled(ctx, slog.LevelDebug) {
		of := []any{"event", e.Name, "key", e.Key, "attempt", e.Attempt}
		if e.Err != nil {
			of = append(of, "error", e.Err)
		}
		o.Logger.DebugContext(ctx, "once: event", of...)
	}
	if observer, ok := o.Observer.(EventObserver); ok {
		watch.Guard(ctx, o.Logger, func() { observer.Event(ctx, e) })
	}
}

// As finds an optional capability of a store, such as [Lister]: in the store
// itself, or else in the stores that it wraps. The outermost one wins.
//
// A wrapper has a method Unwrap that returns the store that it wraps. To see the
// calls of a capability, it implements that capability. If it wraps stores with
// and without the capability, it has a method As instead, like an error for
// [errors.As]: target is a non-nil pointer to the type of a capability, and As
// either sets it and returns true, or returns false. Then the search goes on in
// the store that it wraps.
func As[Capability any](store any) (Capability, bool) {
	for {
		if c, ok := store.(Capability); ok {
			return c, true
		}
		var c, none Capability
		if wrapper, ok := store.(interface{ As(target any) bool }); ok && wrapper.As(&c) {
			return c, true
		}
		wrapper, ok := store.(interface{ Unwrap() Store })
		if !ok {
			return none, false
		}
		store = wrapper.Unwrap()
	}
}
