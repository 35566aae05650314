package once

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/name"
)

// Key names a unit of work: for whom it is done, what is done, and which one it
// is. Equal keys are the same work. No two keys with different parts are equal,
// however the parts are cut. Keys are comparable.
type Key struct {
	Scope     string // whose work it is: a tenant, a caller; may be empty, at most 255 bytes
	Operation string // what is done: "pay", or "pay/charge" for a step of it; mandatory, at most 255 bytes
	ID        string // which one: an order id, a message id; mandatory, 1 to 255 printable bytes
}

// Step names a part of the work that k names: a key like any other, with an
// outcome of its own. If the work fails and is tried again, it skips the steps
// that are done.
func (k Key) Step(name string) Key {
	k.Operation += "/" + name
	return k
}

// String returns the key as it travels: sent to other systems as their
// idempotency key, carried in messages, put on traces. It has the shape of a
// UUID (36 characters) and never changes for a key. It does not show the parts,
// but whoever can guess them can check the guess. In logs, use the Key itself
// with slog, or its ID.
func (k Key) String() string { return name.Format(k.UUID()) }

// UUID returns the key as stores index it: a digest of the three parts, as a
// version 8 UUID.
func (k Key) UUID() [16]byte { return name.Digest(k.Scope, k.Operation, k.ID) }

// LogValue shows the readable parts.
func (k Key) LogValue() slog.Value {
	return slog.GroupValue(slog.String("scope", k.Scope), slog.String("operation", k.Operation),
		slog.String("id", k.ID), slog.String("key", k.String()))
}

// Validate returns an [ErrInvalid] that says what is wrong with k, or nil.
func (k Key) Validate() error {
	if err := name.CheckKey(k.Scope, k.Operation, k.ID); err != nil {
		return invalid("key: %v", err)
	}
	return nil
}

// Policy configures leases, waiting and retention for all kinds of guarded
// work. The zero value is valid.
type Policy struct {
	// Lease is how long a claim of Do lasts unless its holder extends it, which a
	// live holder does. If the holder crashes, the key becomes Unknown when the
	// lease lapses. Default: 30 seconds.
	Lease time.Duration

	// Wait is how long a duplicate waits for a running call before it returns
	// ErrInProgress. NoWait disables waiting. Default: 5 seconds.
	Wait time.Duration

	// KeepOutcome is how long the outcome is replayed. After that, duplicates get
	// ErrExpired. Default: 3 days.
	KeepOutcome time.Duration

	// KeepKey is how long the key is recognised. After that it is new. Make it
	// longer than any redelivery. Default: 30 days, or KeepOutcome if that is
	// longer.
	KeepKey time.Duration
}

// NoWait, as [Policy.Wait], makes duplicates of running work return
// [ErrInProgress] at once.
const NoWait time.Duration = -1

// minLease leaves time to extend a lease before it lapses.
const minLease = 10 * time.Millisecond

// withDefaults returns p with its defaults, or an error if p is invalid.
func (p Policy) withDefaults() (Policy, error) {
	p.Lease = cmp.Or(p.Lease, 30*time.Second)
	p.Wait = cmp.Or(p.Wait, 5*time.Second)
	p.KeepOutcome = cmp.Or(p.KeepOutcome, 3*24*time.Hour)
	p.KeepKey = cmp.Or(p.KeepKey, max(30*24*time.Hour, p.KeepOutcome))
	switch {
	case p.Lease < minLease:
		return p, invalid("policy: a Lease of %v lapses before it can be extended: at least %v", p.Lease, minLease)
	case p.Wait < 0 && p.Wait != NoWait:
		return p, invalid("policy: Wait is %v: give a duration, or NoWait", p.Wait)
	case p.KeepOutcome < 0 || p.KeepKey < p.KeepOutcome:
		return p, invalid("policy: KeepOutcome (%v) is negative, or KeepKey (%v) is shorter", p.KeepOutcome, p.KeepKey)
	}
	return p, nil
}

// OnUnknown says what happens when an outcome is unknown and cannot be looked
// up. The zero value means that nothing was chosen, and Do refuses to start.
type OnUnknown int

const (
	Park   OnUnknown = iota + 1 // at most once: the key is parked until a person decides
	Resend                      // at least once: the next call repeats the work
)

// Operation describes one kind of work. Declare it once and share it between
// call sites. It is safe for concurrent use.
type Operation[T any] struct {
	Name   string // required and stable, without a slash: it is part of every key
	Policy Policy

	// Lookup asks the other system whether the work of a key happened. Do calls it
	// before it repeats work whose outcome is unknown. Returning false promises
	// that the work did not happen and that no earlier attempt can still arrive.
	// If one can, or if the search lags, return an error. ErrRejected with a value
	// is an answer. Lookup and OnUnknown exclude each other.
	Lookup func(context.Context, Key) (value T, happened bool, err error)

	// SettleTime is how long after its end an attempt can still arrive. Until it
	// has passed, Lookup returning false is inconclusive. Default: 0.
	SettleTime time.Duration

	// OnUnknown is the choice for outcomes that cannot be looked up. Do requires
	// OnUnknown or Lookup.
	OnUnknown OnUnknown

	// KeyValidFor is how long the other system honours key.String() as an
	// idempotency key, counted from the first attempt. After that, unknown work is
	// parked instead of repeated. Default: 0, no limit.
	KeyValidFor time.Duration

	// AsyncCommit lets Do continue before its claim is on the database's disk. If
	// the database crashes, it may forget the claim; the next call then runs as
	// the first, possibly beside the one in progress. AsyncCommit requires Resend
	// and a KeyValidFor within which calls are repeated.
	AsyncCommit bool

	// Speculative lets DoTx enter the work before it knows whether it won the
	// claim, if the store can send both in one round trip, as pgstore does. A call
	// that loses the claim may then have entered the work. None of its statements
	// takes effect, and its result or panic is ignored, but other side effects
	// such as log lines and counters have happened. The work runs in its own
	// goroutine. Default: false, duplicates run nothing.
	Speculative bool

	// Codec converts values to outcomes and back. The default is JSON, which drops
	// unexported fields and bytes that are not UTF-8, so a replay lacks them. If T
	// is Outcome, values are stored unchanged.
	Codec Codec[T]
}

// For returns the unit of work with this ID. Use [Work.In] to set its scope.
func (o *Operation[T]) For(id string) Work[T] {
	return Work[T]{op: o, key: Key{Operation: o.Name, ID: id}}
}

// Under returns this work as a step of the unit that parent names. It has the
// parent's scope and ID, and its own Input. In a loop over items use For,
// because all calls under one parent are the same work.
func (o *Operation[T]) Under(parent Key) Work[T] {
	return Work[T]{op: o, key: parent.Step(o.Name)}
}

// Outcome returns v in the form that this operation stores.
func (o *Operation[T]) Outcome(v T) (Outcome, error) {
	out, err := o.encode(v)
	if err == nil {
		err = name.Check("content type", out.ContentType)
	}
	if err == nil && out.isSealed() {
		err = invalid("the content type %s is reserved for sealed outcomes", sealedType)
	}
	return out, err
}

// encode turns a panic of the Codec, or of a method of the value, into an error:
// the work is done by then.
func (o *Operation[T]) encode(v T) (out Outcome, err error) {
	defer codecPanic(&err)
	out, err = o.codec().Encode(v)
	return out, errtree.Tame(err)
}

func (o *Operation[T]) decode(out Outcome) (v T, err error) {
	defer codecPanic(&err)
	v, err = o.codec().Decode(out)
	return v, errtree.Tame(err)
}

func codecPanic(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the Codec, or a method of the value, panicked: %s", errtree.Panic(p))
	}
}

func (o *Operation[T]) codec() Codec[T] {
	if o.Codec != nil {
		return o.Codec
	}
	return jsonCodec[T]{}
}

// validate checks the declaration.
func (o *Operation[T]) validate() error {
	switch {
	case o.Name == "":
		return invalid("operation: the Name is empty")
	case strings.Contains(o.Name, "/"):
		return invalid("operation %q: a Name has no slash: declare steps with Under", o.Name)
	case o.OnUnknown < 0 || o.OnUnknown > Resend:
		return invalid("operation %q: OnUnknown is neither Park nor Resend", o.Name)
	case o.Lookup != nil && o.OnUnknown != 0:
		return invalid("operation %q: Lookup and OnUnknown exclude each other", o.Name)
	case o.SettleTime < 0 || o.KeyValidFor < 0:
		return invalid("operation %q: SettleTime and KeyValidFor must not be negative", o.Name)
	case o.AsyncCommit && (o.OnUnknown != Resend || o.KeyValidFor == 0):
		return invalid("operation %q: AsyncCommit needs Resend and KeyValidFor: a claim that is forgotten is run again", o.Name)
	}
	_, err := o.Policy.withDefaults()
	return err
}

// validateForDo checks that it is declared what Do does about an unknown
// outcome.
func (o *Operation[T]) validateForDo() error {
	if o.Lookup == nil && o.OnUnknown == 0 {
		return invalid("operation %q: after a crash nobody can tell whether the work happened: "+
			"give it a Lookup that asks, or choose OnUnknown: Park or Resend", o.Name)
	}
	return nil
}

// Work is one unit of an operation. Its methods return a modified copy.
type Work[T any] struct {
	op          *Operation[T]
	key         Key
	input       []byte
	hasInput    bool
	redelivered bool
	cause       [16]byte
	report      *Report
}

// Key returns the key of this unit of work.
func (w Work[T]) Key() Key { return w.key }

// In sets the scope, such as a tenant or a caller.
func (w Work[T]) In(scope string) Work[T] {
	w.key.Scope = scope
	return w
}

// Input sets the input. A call with the same key and another input then returns
// ErrMismatch. Only a digest of the input is stored. Calls without an Input are
// not compared.
func (w Work[T]) Input(b []byte) Work[T] {
	w.input, w.hasInput = b, true
	return w
}

// Redelivered marks work that is probably a duplicate. Its record is then read
// first, which is cheaper for duplicates.
func (w Work[T]) Redelivered() Work[T] {
	w.redelivered = true
	return w
}

// CausedBy names the key whose work put the message that this work is on, as
// in the header once-key of that message. The store records it with the claim,
// so that a [RecordQuery] with this Cause finds the work that the key led to.
// It does not affect which calls are duplicates. A text that is not a
// Key.String is ignored.
func (w Work[T]) CausedBy(key string) Work[T] {
	w.cause = name.Parse(key)
	return w
}

// Report sets a Report that is filled in when the call returns.
func (w Work[T]) Report(r *Report) Work[T] {
	w.report = r
	return w
}

// Report describes how a call went.
type Report struct {
	Replayed bool  // the answer was recorded by an earlier call
	Attempt  int64 // the attempt that the result is about, or 0
}
