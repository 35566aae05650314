package asking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/reconcile"
)

// Operation is an operation that can be asked about. Its settings must match
// those of its once.Operation: an answer is only as good as SettleTime and
// KeyValidFor.
type Operation struct {
	Name     string
	Endpoint *Endpoint

	AtOnce    int     // maximum number of concurrent questions; 0: the caller's default
	PerSecond float64 // maximum rate of questions; 0: no limit

	SettleTime  time.Duration
	KeyValidFor time.Duration // 0: without end

	// How long the result is kept. The defaults are a month and a year, as for
	// decisions of people, because the Policy of the operation is not known
	// here.
	KeepOutcome, KeepKey time.Duration
}

const (
	defaultKeepOutcome = 30 * 24 * time.Hour
	defaultKeepKey     = 365 * 24 * time.Hour
)

// Declared returns the operation for asking about records of a store.
func (o Operation) Declared(s once.Store) *once.Operation[once.Outcome] {
	return o.declared(func(ctx context.Context, k once.Key) (Answer, error) { return o.about(ctx, s, k) })
}

// about asks about a key of a store.
func (o Operation) about(ctx context.Context, s once.Store, k once.Key) (Answer, error) {
	r, err := s.Get(ctx, k) // Lookup is not told the attempt
	switch {
	case err != nil:
		return Answer{}, err
	case r.Status != once.Unknown:
		return Answer{}, fmt.Errorf("not asked: it is now %v", r.Status)
	}
	r.Key = k
	return o.put(ctx, r)
}

// put asks. A question takes time: a not_found that arrives when the key is no
// longer honoured is no answer, unless the age before the question already says
// so.
func (o Operation) put(ctx context.Context, r once.Record) (Answer, error) {
	begun := time.Now()
	answer, err := o.Endpoint.ask(ctx, r)
	if o.KeyValidFor > 0 && answer.Kind == NotFound && r.Age <= o.KeyValidFor && r.Age+time.Since(begun) > o.KeyValidFor {
		return Answer{}, errors.New("the answer is not_found, and came too late: KeyValidFor has passed meanwhile")
	}
	return answer, err
}

func (o Operation) declared(ask func(context.Context, once.Key) (Answer, error)) *once.Operation[once.Outcome] {
	policy := once.Policy{KeepOutcome: o.KeepOutcome, KeepKey: o.KeepKey}
	if policy.KeepOutcome == 0 {
		policy.KeepOutcome = defaultKeepOutcome
	}
	if policy.KeepKey == 0 {
		policy.KeepKey = max(defaultKeepKey, policy.KeepOutcome)
	}
	return &once.Operation[once.Outcome]{Name: o.Name, Policy: policy, SettleTime: o.SettleTime, KeyValidFor: o.KeyValidFor,
		Lookup: func(ctx context.Context, k once.Key) (out once.Outcome, happened bool, err error) {
			answer, err := ask(ctx, k)
			if err != nil {
				return out, false, err
			}
			return answer.lookup()
		}}
}

// lookup turns the answer into the result of a Lookup.
func (a Answer) lookup() (out once.Outcome, happened bool, err error) {
	switch a.Kind {
	case Done, Rejected:
		out = once.Outcome{Body: a.Result, ContentType: "application/json"}
		if a.Kind == Rejected {
			return out, false, once.ErrRejected
		}
		return out, true, nil
	case NotFound:
		return out, false, nil
	}
	text := fmt.Sprintf("the answer is %s", a.Kind)
	if a.Note != "" {
		text += ": " + a.Note
	}
	return out, false, errors.New(text)
}

// Finding is the answer about a record, and what it would change.
type Finding struct {
	reconcile.Finding
	Answer Answer // zero Kind: there was no answer
	Why    string // why, if there is more to say than the answer
}

// Find asks about an unknown record and changes nothing. The settlement is the
// one that once.Operation.Ask would make.
func (o Operation) Find(ctx context.Context, s once.Store, r once.Record) (f Finding) {
	var unanswered error
	f.Finding = reconcile.Of(o.declared(func(ctx context.Context, k once.Key) (Answer, error) {
		f.Answer, unanswered = o.about(ctx, s, k)
		return f.Answer, unanswered
	})).Find(ctx, s, r)
	after, _ := once.MayRetry(f.Err)
	switch {
	case unanswered != nil:
		f.Why = unanswered.Error()
	case f.Answer.Kind == NotFound && f.Err != nil:
		f.Why = fmt.Sprintf("it can still arrive: the settle time ends in %v", after.Round(time.Second))
	case f.Answer.Note != "":
		f.Why = f.Answer.Note
	case f.Err != nil && f.Answer.Kind != Pending && f.Answer.Kind != NotKnown:
		f.Why = f.Err.Error()
	case f.Settlement.Status == once.Parked:
		f.Why = f.Settlement.Reason
	}
	return f
}
