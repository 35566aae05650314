package once

import (
	"context"
	"log/slog"
	"time"

	"github.com/effectively-once/once/internal/flight"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/rerun"
)

// flightKey has the input too: a duplicate with another one must hear of its mismatch from the record, whoever was first.
type flightKey struct {
	key         Key
	fingerprint [32]byte
}

// Store remembers keys. It is the contract that an adapter fulfils, and nothing in it is clever: waiting, heartbeats,
// retries and every policy live above it, in [Do] and [DoTx].
//
// All methods may be called concurrently, from any number of processes. Each acts atomically and is durable when it
// returns nil. An error other than the ones named here means that the call may or may not have been applied; the caller
// finds out by repeating it, which is always safe. Adapters do not retry. Keys arrive validated. Slices in arguments belong
// to the caller and are not changed or kept after the call returns; slices in results belong to the caller.
//
// Time is the store's own clock. Leases and retention arrive as durations; a client's clock decides nothing.
type Store interface {
	// Claim takes a free key, or returns what stands in the way: it is the caller's if the Record is Running
	// with the Owner of the ClaimRequest. A unique index is the referee: an adapter inserts first and never decides
	// by looking.
	//
	// A key is free when it is Absent, which includes one whose KeepKey has passed. A claim sets Running, the
	// lease, the fingerprint and the owner, clears the rest, and raises Attempt by one; a key that was never
	// seen or whose KeepKey has passed starts anew at 1. A key in Unknown is taken over if ClaimRequest.Attempt
	// names its attempt, keeping its age. A claim whose Owner holds the record already changes nothing and
	// returns the record, so that a claim whose reply was lost can be repeated. One whose Owner has released the key
	// since is late: it changes nothing either, and returns the Absent record.
	Claim(context.Context, ClaimRequest) (Record, error)

	// Extend lets the lease end after d from now. ErrLeaseLost: it has lapsed, or the Fence is not current;
	// a lapsed lease stays lapsed.
	Extend(ctx context.Context, fence Fence, d time.Duration) error

	// Settle ends an attempt. It changes a record that is Running (its lease lapsed or not), Unknown or
	// Parked, and only if the Fence is current. Repeating a settlement that was applied is nil. Anything else
	// is ErrLeaseLost and changes nothing: Done is final, Parked does not go back to Unknown.
	// ErrOutcomeRefused: nothing was changed, and repeating is pointless, because the store cannot hold this outcome: it
	// is too large for its column or its protocol, or violates a constraint. Without a body it may be accepted. A store
	// that was not reached, or did not answer in time, has refused nothing.
	Settle(context.Context, Settlement) error

	// Get returns the record of a key as it is now; the zero Record if it was never seen or is forgotten.
	// It reads what was written last: never a replica, never an old snapshot.
	Get(context.Context, Key) (Record, error)

	// Forget drops outcomes past their KeepOutcome and keys past their KeepKey, at most limit records, in one
	// short transaction, and returns how many it changed: fewer than limit means that nothing is left to do.
	// It may be interrupted anywhere. Running, Unknown and Parked records are never forgotten. A limit below 1 is
	// ErrInvalid.
	Forget(ctx context.Context, limit int) (int, error)

	// Options returns the same pointer at every call, made by [Options.Ready]. A wrapper forwards it.
	Options() *Options
}

// TxStore is a store that lives in a transactional database: the record of a key commits with the rows
// of its work. Tx is the transaction as its users know it, for example *sql.Tx or pgx.Tx.
type TxStore[Tx any] interface {
	Store

	// Transact begins a transaction, claims, calls body with the records that the claims returned, settles
	// what body returns, and commits. body is not called before the claims are made, unless ClaimRequest.Speculative allows
	// it: a claim that is lost then has entered nothing. If none of the claims is the caller's, it rolls back, does not call
	// body, and returns the records. It returns the records as claimed.
	//
	// If body fails, panics or ends its goroutine, everything is rolled back, and its error comes back, wrapped
	// at most. A claim that body does not settle is committed as Running. ErrConflict: the database rolled everything
	// back and the same call may succeed. ErrOutcomeUnknown: the commit was sent and whether it was applied is not known. Other
	// errors: nothing was committed.
	//
	// A claim meets transactions in flight as well: it waits for them, up to ClaimRequest.Wait or what the engine
	// can bound it to, or returns Running with LeaseLeft 0 instead. One whose lease lapsed while it waited is Unknown
	// with the Owner of the ClaimRequest, and the caller's all the same, here and in ClaimTx.
	//
	// The transaction does not end because ctx does: only Transact ends it. A settlement must change its own
	// row, or everything is rolled back with ErrLeaseLost: so that nothing is committed by a transaction that
	// the database silently began anew.
	Transact(ctx context.Context, rs []ClaimRequest, body func(Tx, []Record) ([]Settlement, error)) ([]Record, error)

	// ClaimTx is Claim for each ClaimRequest, inside a transaction that the caller began and ends. Losing a claim
	// leaves that transaction usable.
	ClaimTx(ctx context.Context, tx Tx, rs []ClaimRequest) ([]Record, error)

	// SettleTx is Settle for each Settlement, inside a transaction that the caller began and ends.
	SettleTx(ctx context.Context, tx Tx, ss []Settlement) error
}

// Lister is a store that can list its records. It is optional: without it, stuck keys are found only by their name.
type Lister interface {
	// List returns records in a stable order that only the store knows, without the bodies of outcomes. A page is bounded
	// work, so it may be short, or empty, and not be the last. If Status has no others than Running, Unknown and Parked,
	// records that are none of these cost nothing.
	List(context.Context, RecordQuery) (RecordPage, error)
}

// RecordPage is a part of a list.
type RecordPage struct {
	Records []Record
	Next    Key // RecordQuery.After of the next page; zero: there is none
}

// RecordQuery selects records; zero fields select all.
type RecordQuery struct {
	Operation string        // exactly
	Scopes    []string      // any of them
	Status    []Status      // any of them
	Unchanged time.Duration // for at least so long
	After     Key           // Next of the page before, or any other key
	Limit     int           // default 100, at most 1,000
}

// Fence is the fence of a claim: only a settlement or extension that names the current one is applied.
// Its token is random for each claim, so a forgotten key that is claimed anew has no old holder.
type Fence struct {
	Key     Key
	Owner   [16]byte
	Attempt int64
}

// ClaimRequest asks for a key.
type ClaimRequest struct {
	Fence       // Attempt: take over this attempt if it is Unknown; 0: never take over
	Lease       time.Duration
	Wait        time.Duration // Claim, Transact: how long to wait for a transaction on the key; 0: as short as possible
	Fingerprint []byte        // empty: none
	Expected    *Settlement   // how the attempt ends if all goes well, as far as known, without a Fence. It may be written with the claim

	// Speculative allows a Transact of one ClaimRequest with Expected set to call body before it knows whether the claim is won.
	// body then gets the record that the claim of a new key would return, without its times. If the claim is lost, no
	// statement of body takes effect and its error is ignored; if the key then turns out to be free, body is called again.
	// body settles as Expected says, but for the Outcome, or fails. Without it, body is called only after the claim is won.
	Speculative bool

	AsyncCommit bool // Claim: a crash of the database may forget the claim, so the store need not wait for its disk
}

// Settlement ends the attempt that its Fence names, as seen in a claim or in a record.
type Settlement struct {
	Fence
	Status      Status        // Done, Parked, Unknown; or Absent: free again, the attempt stays counted
	Outcome     Outcome       // Done only
	KeepOutcome time.Duration // Done: how long the outcome is kept
	KeepKey     time.Duration // Done and Absent: how long the key, or the count of its attempts, is kept
	Reason      string
}

// Options are the options that all stores share. Adapters embed them in their own. The zero value works.
type Options struct {
	Logger     *slog.Logger // what went wrong behind a caller's back; default: slog.Default(), as it is when something is logged
	Observer   Observer     // sees every call: for metrics and spans; default: none
	MaxOutcome int          // bytes of an outcome's body; default 1 MiB
	Secret     []byte       // when set, fingerprints are keyed with it. Changing it makes repeats of older keys mismatch
	Sealing    Sealing      // encrypts what is stored; default: it is not

	flights *flight.Group[flightKey, Record]
	reruns  *rerun.Line
}

// Ready returns a copy with the defaults, and with what the calls of one process share. An adapter calls it once.
func (o Options) Ready() *Options {
	o.Logger = logs.Of(o.Logger)
	if o.MaxOutcome <= 0 {
		o.MaxOutcome = 1 << 20
	}
	o.flights, o.reruns = new(flight.Group[flightKey, Record]), rerun.NewLine()
	return &o
}

// Turn waits for its turn to run a transaction again after ErrConflict, and returns how to end that turn. The transactions
// of a process that use one store take turns, because those that deadlocked deadlock again side by side. It is for those
// who run transactions without [DoTx].
func (o *Options) Turn(ctx context.Context) (leave func(), err error) { return o.reruns.Enter(ctx) }
