package once

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/name"
)

// Policy holds the settings that every kind of guarded work shares. The zero value works.
type Policy struct {
	// Lease is how long a claim of Do is held without a sign of life; a live holder extends it.
	// The key of a holder that crashed becomes Unknown when its lease lapses. Default 30 seconds.
	Lease time.Duration

	// Wait is how long a duplicate that meets the first still running waits for its answer, before it gets
	// ErrInProgress. NoWait: it does not wait. Default 5 seconds.
	Wait time.Duration

	// KeepOutcome is how long the outcome is replayed; after that a duplicate gets ErrExpired. Default 3 days.
	KeepOutcome time.Duration

	// KeepKey is how long the key is known; after that it is new. Longer than any redelivery.
	// Default 30 days, or KeepOutcome where that is longer.
	KeepKey time.Duration
}

// NoWait is the [Policy.Wait] of work whose duplicates are refused while it is running.
const NoWait time.Duration = -1

const minLease = 10 * time.Millisecond

// withDefaults fills in what is zero, and says what is wrong.
func (p Policy) withDefaults() (Policy, error) {
	p.Lease = cmp.Or(p.Lease, 30*time.Second)
	p.Wait = cmp.Or(p.Wait, 5*time.Second)
	p.KeepOutcome = cmp.Or(p.KeepOutcome, 3*24*time.Hour)
	p.KeepKey = cmp.Or(p.KeepKey, max(30*24*time.Hour, p.KeepOutcome))
	switch {
	case p.Lease < minLease:
		return p, invalid("policy: a Lease of %v lapses before it can be extended: at least %v", p.Lease, minLease)
	case p.Wait < 0 && p.Wait != NoWait:
		return p, invalid("policy: Wait is %v: give a duration, or Refuse", p.Wait)
	case p.KeepOutcome < 0 || p.KeepKey < p.KeepOutcome:
		return p, invalid("policy: KeepOutcome (%v) is negative, or KeepKey (%v) is shorter", p.KeepOutcome, p.KeepKey)
	}
	return p, nil
}

// OnUnknown says what is done about an unknown outcome that cannot be asked about. Zero: nobody has chosen; Do refuses
// to start.
type OnUnknown int

const (
	Park   OnUnknown = iota + 1 // at most once: a person decides
	Resend                      // at least once: the next call runs it again
)

// Operation is one kind of work. Declare it once and share it between its call sites; it is not changed by use.
type Operation[T any] struct {
	Name   string // mandatory, stable, without a slash: it is part of every key
	Policy Policy

	// Lookup asks the other system whether the work of a key happened: before Do runs it again after an
	// attempt whose outcome is unknown. False promises that it did not, and that no earlier attempt can still
	// arrive; where one can, or where the search lags, return an error. ErrRejected with a value is an answer.
	// Lookup excludes OnUnknown.
	Lookup func(context.Context, Key) (value T, happened bool, err error)

	// SettleTime is how long after its end an attempt can still arrive. Until it has passed,
	// a false of Lookup is taken as not yet. Default 0: Lookup knows.
	SettleTime time.Duration

	// OnUnknown is the choice where nobody can be asked. Do needs it or a Lookup.
	OnUnknown OnUnknown

	// KeyValidFor is how long the other system honours key.String() as an idempotency key. When it has passed
	// since the first attempt, unknown work is parked instead of run again. Default 0: no limit.
	KeyValidFor time.Duration

	// AsyncCommit lets Do go on before its claim is on the database's disk. A crash there may forget it: then the next call
	// runs as the first, perhaps beside it. Allowed with Resend and a KeyValidFor, in which repeats must come.
	AsyncCommit bool

	// Speculative lets DoTx enter the work before it knows whether its claim is won, on a store that can then send both
	// in one round trip, as pgstore does. A call that loses the claim may have entered the work all the same: none of its
	// statements takes effect, and what it returns or panics with is ignored. What it did besides, such as log lines and
	// counters, has happened, once for each call that entered. The work runs in a goroutine of its own. Default false:
	// a duplicate runs nothing.
	Speculative bool

	// Codec turns values into outcomes. Default: JSON, which drops unexported fields and bytes that are not UTF-8:
	// they are missing from a replay. A T that is an Outcome is stored as it is.
	Codec Codec[T]
}

// Codec turns values into outcomes and back.
type Codec[T any] interface {
	Encode(T) (Outcome, error)
	Decode(Outcome) (T, error)
}

// jsonCodec is the Codec of an operation that names none. A T that is an Outcome is kept as it is.
type jsonCodec[T any] struct{}

const jsonType = "application/json"

func (jsonCodec[T]) Encode(v T) (Outcome, error) {
	if out, ok := any(v).(Outcome); ok {
		return out, nil
	}
	body, err := json.Marshal(v)
	return Outcome{Body: body, ContentType: jsonType}, err
}

func (jsonCodec[T]) Decode(out Outcome) (v T, err error) {
	if asIs, ok := any(&v).(*Outcome); ok {
		*asIs = out
		return v, nil
	}
	if out.ContentType != jsonType {
		return v, fmt.Errorf("the stored outcome is of the type %q, not JSON: another Codec wrote it", out.ContentType)
	}
	return v, json.Unmarshal(out.Body, &v)
}

// For names the unit of this work with the given id; In gives it a scope.
func (o *Operation[T]) For(id string) Work[T] {
	return Work[T]{op: o, key: Key{Operation: o.Name, ID: id}}
}

// Under names this work as a step of the unit that parent names: it has the parent's scope and id, and an Input of its own.
// In a loop over items use For: all calls under one parent are the same work.
func (o *Operation[T]) Under(parent Key) Work[T] {
	return Work[T]{op: o, key: parent.Step(o.Name)}
}

// Outcome is v as this operation stores it.
func (o *Operation[T]) Outcome(v T) (Outcome, error) {
	out, err := o.codec().Encode(v)
	if err == nil {
		err = name.Check("content type", out.ContentType)
	}
	if err == nil && out.isSealed() {
		err = invalid("the content type %s is for outcomes that once seals itself: see Options.Sealing", sealedType)
	}
	return out, err
}

// expected is what the work of c leaves if its type has one value only, else nothing.
func (o *Operation[T]) expected(c *call) (out Outcome) {
	if o.Codec == nil && reflect.TypeFor[T]().Size() == 0 {
		if value, err := o.Outcome(*new(T)); err == nil {
			var ok bool
			if out, ok = c.pack(value); ok {
				c.foreseen = &packed{plain: value, ready: out, fingerprint: c.fingerprint}
			}
		}
	}
	return out
}

func (o *Operation[T]) codec() Codec[T] {
	if o.Codec != nil {
		return o.Codec
	}
	return jsonCodec[T]{}
}

// validate checks the declaration, and for Do that the choice about unknown outcomes was made.
func (o *Operation[T]) validate(needsChoice bool) error {
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
	case needsChoice && o.Lookup == nil && o.OnUnknown == 0:
		return invalid("operation %q: after a crash nobody can tell whether it happened: "+
			"give it a Lookup that asks, or choose OnUnknown: Park or Resend", o.Name)
	}
	_, err := o.Policy.withDefaults()
	return err
}

// Work is one unit of an operation. Its methods return a changed copy.
type Work[T any] struct {
	op          *Operation[T]
	key         Key
	input       []byte
	hasInput    bool
	redelivered bool
	cause       [16]byte
	report      *Report
}

// Key is the name of this unit of work.
func (w Work[T]) Key() Key { return w.key }

// In sets the scope: whose work it is.
func (w Work[T]) In(scope string) Work[T] {
	w.key.Scope = scope
	return w
}

// Input gives the input, so that the same key with another input is refused with ErrMismatch. It is stored
// as a digest. Calls without an Input are not compared.
func (w Work[T]) Input(b []byte) Work[T] {
	w.input, w.hasInput = b, true
	return w
}

// Redelivered says that this is probably a duplicate: the record is looked at before anything else, which is cheaper then.
func (w Work[T]) Redelivered() Work[T] {
	w.redelivered = true
	return w
}

// CausedBy names the key whose work put the message that this work is on, as
// the message carries it in its header once-key. The store records it with the
// claim, so that a [RecordQuery] by its Cause finds what that key led to. It
// decides nothing: calls with other causes are duplicates all the same. A text
// that is not a Key.String is ignored.
func (w Work[T]) CausedBy(key string) Work[T] {
	w.cause = name.Parse(key)
	return w
}

// Report asks for how the call went; r is filled in when it returns.
func (w Work[T]) Report(r *Report) Work[T] {
	w.report = r
	return w
}

// Report tells how a call went.
type Report struct {
	Replayed bool  // the answer was recorded by another call
	Attempt  int64 // the attempt that the answer or the error is about; 0: none
}
