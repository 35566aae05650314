package asking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

// Operation is an operation that can be asked about. What is right for its once.Operation is right here: an answer is
// worth no more than SettleTime and KeyValidFor say.
type Operation struct {
	Name     string
	Endpoint *Endpoint

	AtOnce    int     // how many questions may be on their way; 0: the default of those who ask
	PerSecond float64 // how many may be put in a second; 0: no limit

	SettleTime  time.Duration
	KeyValidFor time.Duration // 0: without end

	// How long what was found out is kept. Default a month and a year, as what persons decide: the Policy of the operation
	// is not known here.
	KeepOutcome, KeepKey time.Duration
}

const (
	defaultKeepOutcome = 30 * 24 * time.Hour
	defaultKeepKey     = 365 * 24 * time.Hour
)

// Declared is the operation, for those who ask about records of a store.
func (o Operation) Declared(s once.Store) *once.Operation[once.Outcome] {
	return o.declared(func(ctx context.Context, k once.Key) (Answer, error) {
		r, err := s.Get(ctx, k) // a Lookup is not told of the attempt
		switch {
		case err != nil:
			return Answer{}, err
		case r.Status != once.Unknown:
			return Answer{}, fmt.Errorf("not asked: it is %v by now", r.Status)
		}
		r.Key = k
		return o.put(ctx, r)
	})
}

// put asks. A question takes its time: a not_found that comes when the key is not honoured any more is no answer, if the
// age before the question does not say so by itself.
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

// lookup is the answer as that of a Lookup.
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

// Finding is what was found out about a record.
type Finding struct {
	Record     once.Record     // as it was when it was asked about
	Answer     Answer          // with no Kind: there was none
	Settlement once.Settlement // what the answer makes of the record; Unknown leaves it as it is
	Why        string          // for people: why that is so, if there is more to say than the answer
}

// Find asks about a record that is unknown, and changes nothing. What the answer makes of it is what once.Operation.Ask
// makes of it.
func (o Operation) Find(ctx context.Context, s once.Store, r once.Record) (f Finding) {
	f.Record, f.Settlement.Status = r, once.Unknown
	now, err := s.Get(ctx, r.Key) // it may have waited for its turn for long, and its age decides, too
	switch {
	case err != nil:
		f.Why = err.Error()
		return f
	case now.Status != once.Unknown:
		f.Why = fmt.Sprintf("not asked: it is %v by now", now.Status)
		return f
	}
	now.Key = r.Key
	notes := &notebook{Store: s, record: now, set: f.Settlement}
	var unanswered error
	op := o.declared(func(ctx context.Context, _ once.Key) (Answer, error) {
		f.Answer, unanswered = o.put(ctx, now)
		return f.Answer, unanswered
	})
	_, err = op.Ask(ctx, notes, now)
	f.Record, f.Settlement = now, notes.set
	after, _ := once.MayRetry(err)
	switch {
	case unanswered != nil:
		f.Why = unanswered.Error()
	case f.Answer.Kind == NotFound && err != nil:
		f.Why = fmt.Sprintf("it can still arrive: the settle time ends in %v", after.Round(time.Second))
	case f.Answer.Note != "":
		f.Why = f.Answer.Note
	case err != nil && f.Answer.Kind != Pending && f.Answer.Kind != NotKnown:
		f.Why = err.Error()
	case f.Settlement.Status == once.Parked:
		f.Why = f.Settlement.Reason
	}
	return f
}

// notebook is a store that only takes note of what would be changed.
type notebook struct {
	once.Store
	record once.Record
	set    once.Settlement
}

func (n *notebook) Settle(_ context.Context, set once.Settlement) error {
	n.set = set
	return nil
}

func (n *notebook) Get(context.Context, once.Key) (once.Record, error) { return n.record, nil }
