package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
)

// Finding is what the other system says about an unknown record, before anything
// is changed.
type Finding struct {
	Record once.Record // as it was when it was asked about

	// Settlement is what Operation.Ask would do: its Status is Done, Absent (free
	// again) or Parked, or Unknown if there is no answer that decides.
	Settlement once.Settlement

	Err error // why there is no answer that decides

	begun    time.Time // before the record was read
	validFor time.Duration
}

// Asks reports whether op asks about the records of a key: those of its own name,
// and those of steps.
func (op Operation) Asks(k once.Key) bool { return op.ask != nil && op.name == operationOf(k) }

// Name is the Name of the operation that [Of] was called with.
func (op Operation) Name() string { return op.name }

// Find asks about a record as a Reconciler does, but changes nothing: it is for
// people who want to see the answer first. The record is read again before it is
// asked about. No Observer is told, because nothing has become of the record yet.
func (op Operation) Find(ctx context.Context, s once.Store, rec once.Record) (f Finding) {
	f = Finding{Record: rec, begun: time.Now(), validFor: op.validFor}
	f.Settlement.Status = once.Unknown
	now, err := s.Get(ctx, rec.Key) // it may have waited for long, and its age matters
	switch {
	case err != nil:
		f.Err = err
		return f
	case now.Status != once.Unknown:
		f.Err = fmt.Errorf("not asked: it is now %v", now.Status)
		return f
	}
	now.Key = rec.Key
	f.Record = now
	notes := &notebook{Store: s, record: now, set: f.Settlement, options: *s.Options()}
	notes.options.Observer, notes.options.Logger = nil, slog.New(slog.DiscardHandler)
	if _, f.Err = op.ask(ctx, notes, now); f.Err == nil {
		f.Settlement = notes.set
		f.Settlement.Reason = s.Options().Sealing.OpenReason(once.Record{Key: now.Key, Reason: notes.set.Reason}) // to be read
	}
	return f
}

// Settle makes the change of a Finding, with a reason that says who wants it. It
// returns once.ErrLeaseLost if the record has changed since it was asked about,
// and once.ErrOutcomeUnknown if the answer has become too old: it was not found,
// and the other system may have forgotten the key meanwhile.
func (f Finding) Settle(ctx context.Context, s once.Store, reason string) error {
	set, k := f.Settlement, f.Record.Key
	switch {
	case set.Status == once.Unknown:
		return invalid("there is no answer to record")
	case reason == "":
		return invalid("a decision needs a reason: who decided, and how it is known")
	case set.Status == once.Absent && f.validFor > 0 && f.Record.Age+time.Since(f.begun) > f.validFor:
		return fmt.Errorf("%w: the answer is too old, because KeyValidFor has passed meanwhile: ask again", once.ErrOutcomeUnknown)
	}
	set.Reason = name.Reason(reason)
	err := s.Settle(ctx, set)
	if errors.Is(err, once.ErrOutcomeRefused) && !set.Outcome.Omitted { // as Operation.Ask: that it happened counts more
		set.Outcome, _ = s.Options().Pack(k, f.Record.Fingerprint, once.Outcome{Rejected: set.Outcome.Rejected, Omitted: true})
		err = s.Settle(ctx, set)
	}
	if err == nil {
		s.Options().Tell(ctx, once.Event{Name: observe.Decided, Key: k, Attempt: f.Record.Attempt})
	}
	return err
}

// notebook is a store that notes changes instead of making them. It has no Unwrap,
// so that nothing finds a capability that would make them.
type notebook struct {
	once.Store
	options once.Options
	record  once.Record
	set     once.Settlement
}

func (n *notebook) Options() *once.Options { return &n.options }

func (n *notebook) Settle(_ context.Context, set once.Settlement) error {
	n.set = set
	return nil
}

func (n *notebook) Get(context.Context, once.Key) (once.Record, error) { return n.record, nil }
