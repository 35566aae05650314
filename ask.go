package once

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
)

// Ask finds out about a record in [Unknown] and settles it: done or rejected if Lookup says so, free if Lookup
// says that it did not happen, parked if OnUnknown is Park or the other system has forgotten the key.
// It never runs the work: a record of an operation that resends stays Unknown until the next call with its input.
// Ask returns the record as it is then. ErrOutcomeUnknown: there is no answer yet. ErrLeaseLost: somebody else
// settled or took the record meanwhile.
func (o *Operation[T]) Ask(ctx context.Context, s Store, rec Record) (now Record, err error) {
	if err := o.validate(false); err != nil || rec.Status != Unknown {
		return rec, err
	}
	if err := s.Options().Sealing.Validate(); err != nil { // else an answer might be recorded that nobody accepts
		return rec, err
	}
	if op := rec.Key.Operation; op != o.Name && !strings.HasSuffix(op, "/"+o.Name) {
		return rec, invalid("operation %q is asked about a record of %q", o.Name, op)
	}
	ctx, seen := beginObservation(ctx, s, "Ask", rec.Key)
	defer seen.end(&err)
	set, err := o.judge(ctx, s, rec)
	limited := lazyctx.Limit(ctx, callTime)
	defer limited.Stop()
	if err == nil && set.Status != Unknown {
		failed := s.Settle(limited, set)
		if errors.Is(failed, ErrOutcomeRefused) && !set.Outcome.Omitted { // an answer that cannot be kept is no reason to ask again
			set.Outcome, _ = s.Options().Pack(rec.Key, rec.Fingerprint, Outcome{Rejected: set.Outcome.Rejected, Omitted: true})
			failed = s.Settle(limited, set)
		}
		if failed != nil {
			err = &failure{kind: failed, key: rec.Key, attempt: rec.Attempt}
		}
	}
	// What was found out, and not the record: whoever was waiting for the key may have it by now.
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

// judge decides what becomes of an unknown record; Unknown leaves it as it is.
func (o *Operation[T]) judge(ctx context.Context, s Store, rec Record) (Settlement, error) {
	policy, _ := o.Policy.withDefaults()
	set := Settlement{Fence: rec.fence(), Status: Unknown, KeepOutcome: policy.KeepOutcome, KeepKey: policy.KeepKey}
	again := Unknown
	switch {
	case o.Lookup != nil:
		value, happened, err := o.Lookup(ctx, rec.Key)
		rejected := errors.Is(err, ErrRejected)
		if err != nil && !rejected {
			return set, &failure{kind: ErrOutcomeUnknown, key: rec.Key, attempt: rec.Attempt, hint: "Lookup has no answer yet", cause: err}
		}
		if happened || rejected {
			out, err := o.Outcome(value)
			if err != nil { // an answer that cannot be kept is no reason to run the work again
				out = Outcome{Omitted: true}
			}
			out.Rejected, set.Status = rejected, Done
			set.Outcome, _ = s.Options().Pack(rec.Key, rec.Fingerprint, out)
			return set, nil
		}
		if early := o.SettleTime + rec.LeaseLeft; early > 0 { // LeaseLeft counts down from the attempt's end
			return set, &failure{kind: ErrOutcomeUnknown, key: rec.Key, attempt: rec.Attempt, after: early,
				hint: "Lookup does not see it, but it can still arrive"}
		}
		again, set.Reason = Absent, "Lookup says that it did not happen"
	case o.OnUnknown == Park:
		again, set.Reason = Parked, "the lease lapsed: crashed, or cut off from the store"
	case o.OnUnknown == 0:
		return set, &failure{kind: ErrOutcomeUnknown, key: rec.Key, attempt: rec.Attempt,
			hint: "the operation has neither a Lookup nor a choice in OnUnknown"}
	}
	if set.Status = again; o.KeyValidFor > 0 && rec.Age > o.KeyValidFor {
		set.Status, set.Reason = Parked, "not run again: KeyValidFor has passed since "+rec.Created.UTC().Format(time.RFC3339)
	}
	return set, nil
}

// MarkDone records what a person found out: that the work of an Unknown or Parked record happened, how that is known,
// and its outcome, as [Operation.Outcome] makes it. ErrLeaseLost: the record has moved on since it was read.
func MarkDone(ctx context.Context, s Store, rec Record, out Outcome, reason string) error {
	if err := s.Options().Sealing.Validate(); err != nil {
		return err
	}
	if out.isSealed() {
		return invalid("the content type %s is for outcomes that once seals itself", sealedType)
	}
	out, ok := s.Options().Pack(rec.Key, rec.Fingerprint, out)
	if !ok {
		return &failure{kind: ErrOutcomeTooLarge, key: rec.Key}
	}
	return decide(ctx, s, rec, reason, Settlement{Status: Done, Outcome: out})
}

// MarkNotDone records what a person found out: that the work of an Unknown or Parked record did not happen, and can no
// longer, and how that is known. The key is free again. ErrLeaseLost: the record has moved on since it was read.
func MarkNotDone(ctx context.Context, s Store, rec Record, reason string) error {
	return decide(ctx, s, rec, reason, Settlement{Status: Absent})
}

func decide(ctx context.Context, s Store, rec Record, reason string, set Settlement) error {
	if reason == "" {
		return invalid("a decision needs a reason: who says so, and how it is known")
	}
	if rec.Status != Unknown && rec.Status != Parked {
		return invalid("a record in status %v is not for a person to decide: only unknown and parked ones are", rec.Status)
	}
	set.Fence, set.Reason = rec.fence(), name.Reason(reason)
	set.KeepOutcome, set.KeepKey = 30*24*time.Hour, 365*24*time.Hour // for long: here the operation's policy is not known
	if err := s.Settle(ctx, set); err != nil {
		return &failure{kind: err, key: rec.Key, attempt: rec.Attempt}
	}
	s.Options().Tell(ctx, Event{Name: observe.Decided, Key: rec.Key, Attempt: rec.Attempt})
	return nil
}
