package once

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/contain"
	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
)

// Ask finds out about a record that is [Unknown], settles it, and returns it as
// it is then. The key becomes done or rejected if Lookup says so, free if Lookup
// says that the work did not happen, and parked if OnUnknown is Park or the other
// system has forgotten the key. Ask never runs the work: if OnUnknown is Resend,
// the record stays Unknown until the next call with its input.
//
// Ask returns ErrOutcomeUnknown if there is no answer yet, and ErrLeaseLost if
// the record was settled or taken over in the meantime.
func (o *Operation[T]) Ask(ctx context.Context, s Store, rec Record) (now Record, err error) {
	if err := o.validate(); err != nil || rec.Status != Unknown {
		return rec, err
	}
	if err := s.Options().Sealing.Validate(); err != nil { // otherwise it could record an answer that nobody accepts
		return rec, err
	}
	if op := rec.Key.Operation; op != o.Name && !strings.HasSuffix(op, "/"+o.Name) {
		return rec, invalid("operation %q cannot be asked about a record of %q", o.Name, op)
	}
	ctx, seen := observeCall(ctx, s, "Ask", rec.Key)
	defer seen.end(&err)
	set, err := o.verdict(ctx, s, rec)
	limited := lazyctx.Limit(ctx, time.Now().Add(callTime))
	defer limited.Stop()
	if err == nil && set.Status != Unknown {
		failed := s.Settle(limited, set)
		if errors.Is(failed, ErrOutcomeRefused) && !set.Outcome.Omitted { // do not ask again because the answer cannot be kept
			set.Outcome, _ = s.Options().Pack(rec.Key, rec.Fingerprint, Outcome{Rejected: set.Outcome.Rejected, Omitted: true})
			failed = s.Settle(limited, set)
		}
		if failed != nil {
			err = &failure{kind: failed, key: rec.Key, attempt: rec.Attempt}
		}
	}
	// Report what was found out, not the record: another call may have the key by now.
	seen.tell(Report{Attempt: rec.Attempt}, set.Status, set.Outcome.Rejected, err)
	s.Options().Tell(ctx, Event{Name: observe.Asked, Key: rec.Key, Attempt: rec.Attempt, Err: err})
	if err == nil && set.Status != Unknown {
		s.Options().Tell(ctx, Event{Name: eventOf(set.Status, set.Outcome), Key: rec.Key, Attempt: rec.Attempt})
	}
	if err != nil || set.Status == Unknown {
		return rec, err
	}
	return s.Get(limited, rec.Key)
}

// verdict returns the settlement of an unknown record. The status Unknown leaves
// the record unchanged.
func (o *Operation[T]) verdict(ctx context.Context, s Store, rec Record) (Settlement, error) {
	policy, _ := o.Policy.withDefaults()
	set := Settlement{Fence: rec.fence(), Status: Unknown, KeepOutcome: policy.KeepOutcome, KeepKey: policy.KeepKey}
	again, begun := Unknown, time.Now()
	switch {
	case o.Lookup != nil:
		value, happened, err := o.lookup(ctx, s, rec.Key)
		rejected := errors.Is(err, ErrRejected)
		if err != nil && !rejected {
			return set, &failure{kind: ErrOutcomeUnknown, key: rec.Key, attempt: rec.Attempt, hint: "Lookup has no answer yet", cause: err}
		}
		if happened || rejected {
			out, err := o.Outcome(value)
			if err != nil { // do not run the work again because its answer cannot be kept
				out = Outcome{Omitted: true}
			}
			out.Rejected, set.Status = rejected, Done
			set.Outcome, _ = s.Options().Pack(rec.Key, rec.Fingerprint, out)
			return set, nil
		}
		if early := o.SettleTime + rec.LeaseLeft; early > 0 { // LeaseLeft is negative: the time since the attempt ended
			return set, &failure{kind: ErrOutcomeUnknown, key: rec.Key, attempt: rec.Attempt, after: early,
				hint: "Lookup does not find it, but it can still arrive"}
		}
		again, set.Reason = Absent, whyNeverEnded
		if !rec.Lapsed() && s.Options().Sealing.OpenReason(rec) != whyEnded {
			set.Reason = whyFailed
		}
		if o.KeyValidFor > 0 { // nobody knows when rec was read, and how old the key is by now
			begun = time.Now()
			if rec, err = o.reread(ctx, s, rec); err != nil {
				return set, err
			}
		}
	case o.OnUnknown == Park:
		again, set.Reason = Parked, rec.Why() // which may be sealed, and stays so
	case o.OnUnknown == 0:
		return set, &failure{kind: ErrOutcomeUnknown, key: rec.Key, attempt: rec.Attempt,
			hint: "the operation has neither a Lookup nor a choice in OnUnknown"}
	}
	if set.Status = again; o.isForgotten(rec, begun) {
		set.Status, set.Reason = Parked, whyForgotten(rec)
	}
	return set, nil
}

// reread returns a record as it is now, if it is still unknown.
func (o *Operation[T]) reread(ctx context.Context, s Store, rec Record) (Record, error) {
	limited := lazyctx.Limit(ctx, time.Now().Add(callTime))
	defer limited.Stop()
	now, err := s.Get(limited, rec.Key)
	if err == nil && (now.Status != Unknown || now.fence() != rec.fence()) {
		err = ErrLeaseLost
	}
	if err != nil {
		return rec, &failure{kind: err, key: rec.Key, attempt: rec.Attempt}
	}
	return now, nil
}

// lookup calls Lookup. If that panics or ends its goroutine, it has no answer: who
// repeats the call must not be ended, too.
func (o *Operation[T]) lookup(ctx context.Context, s Store, k Key) (value T, happened bool, err error) {
	err = contain.Logged(ctx, s.Options().Logger, "Lookup", func() (err error) {
		value, happened, err = o.Lookup(ctx, k)
		return err
	})
	return value, happened, err
}

// isForgotten reports whether the other system may have forgotten the key of a
// record that was read after begun. The age of the record grows while others are
// asked and claims wait.
func (o *Operation[T]) isForgotten(rec Record, begun time.Time) bool {
	return o.KeyValidFor > 0 && rec.Age+time.Since(begun) > o.KeyValidFor
}

// whyForgotten is the reason of a record that is parked for that.
func whyForgotten(rec Record) string {
	return "not run again: KeyValidFor has passed since " + rec.Created.UTC().Format(time.RFC3339)
}

// MarkDone records a person's decision that the work of an Unknown or Parked
// record happened. out is its outcome, as [Operation.Outcome] makes it, and reason
// says how that is known. MarkDone returns ErrLeaseLost if the record has changed
// since it was read, even to what the decision would have made of it: somebody
// else decided the same, or the holder reported it. After any other error of the
// store, the decision may have been recorded.
func MarkDone(ctx context.Context, s Store, rec Record, out Outcome, reason string) error {
	if err := s.Options().Sealing.Validate(); err != nil {
		return err
	}
	if out.isSealed() {
		return invalid("the content type %s is reserved for sealed outcomes", sealedType)
	}
	out, ok := s.Options().Pack(rec.Key, rec.Fingerprint, out)
	if !ok {
		return &failure{kind: ErrOutcomeTooLarge, key: rec.Key}
	}
	return decide(ctx, s, rec, reason, Settlement{Status: Done, Outcome: out})
}

// MarkNotDone records a person's decision that the work of an Unknown or Parked
// record did not happen and no longer can. reason says how that is known. The key
// is free again. MarkNotDone returns the errors of MarkDone.
func MarkNotDone(ctx context.Context, s Store, rec Record, reason string) error {
	return decide(ctx, s, rec, reason, Settlement{Status: Absent})
}

func decide(ctx context.Context, s Store, rec Record, reason string, set Settlement) error {
	if reason == "" {
		return invalid("a decision needs a reason: who decided, and how it is known")
	}
	if rec.Status != Unknown && rec.Status != Parked {
		return invalid("a person decides only about unknown and parked records, and this one is %v", rec.Status)
	}
	set.Fence, set.Reason = rec.fence(), name.Reason(reason)
	set.KeepOutcome, set.KeepKey = 30*24*time.Hour, 365*24*time.Hour // long, because the policy of the operation is not known here
	err := s.Settle(ctx, set)
	if err == nil {
		err = wasFirst(ctx, s, set)
	}
	if err != nil {
		return &failure{kind: err, key: rec.Key, attempt: rec.Attempt}
	}
	s.Options().Tell(ctx, Event{Name: observe.Decided, Key: rec.Key, Attempt: rec.Attempt})
	return nil
}

// wasFirst returns ErrLeaseLost if the record is as set would have made it, and by
// its reason somebody else did: the store took set for a repetition.
func wasFirst(ctx context.Context, s Store, set Settlement) error {
	now, err := s.Get(ctx, set.Key)
	switch {
	case err != nil:
		return err
	case now.Attempt != set.Attempt: // the next has begun, and nothing tells any more
		return nil
	case now.Status == Expired, now.Status == set.Status && now.Reason != set.Reason:
		return ErrLeaseLost
	}
	return nil
}
