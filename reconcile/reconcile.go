package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
)

// Reconciler asks about unknown outcomes. Store and Operations are required;
// the zero value of every other field is valid. It is not changed by use. Any
// number of Reconcilers may run on one store. AtOnce and PerSecond bound each
// of them.
type Reconciler struct {
	Store      once.Store
	Operations []Operation

	// Every is the maximum time between two looks for records. A record that
	// has been unknown for long is not asked about at each look, but at random,
	// about once in a tenth of the time that has passed. If the store fails,
	// looks are up to ten times as far apart. Default: 1 minute.
	Every time.Duration

	// AskTime limits the answer about one record, and a Resume with all its
	// work: their context ends then. One that ignores its context keeps its
	// place among AtOnce, and keeps Run from returning. Default: 30 seconds.
	AskTime time.Duration

	Logger *slog.Logger // what is found out, and what cannot be; default: slog.Default()
	Stats  *Stats       // counts what becomes of records, if it is not nil
}

// Operation is an operation whose records the Reconciler looks after. [Of]
// makes it. Change the fields whose defaults do not fit.
type Operation struct {
	AtOnce    int     // maximum number of records asked about at the same time; default 4
	PerSecond float64 // maximum number of records started in a second; default: no limit

	// Resume finishes a unit of work that its caller abandoned. It is called
	// for each unknown record instead of asking, and does what the caller did:
	// it calls once.Do with the same key, which first asks about the attempt
	// before. With another key the work would run a second time, so mind the
	// scope. For a step such as "pay/charge", call the whole work. Default:
	// records are asked about, and work that may be repeated waits for its
	// caller.
	Resume func(context.Context, once.Key) error

	name     string
	validFor time.Duration // KeyValidFor
	ask      func(context.Context, once.Store, once.Record) (once.Record, error)
}

// Of returns the Operation of op, as it is declared for once.Do. It looks after
// all records of that name, including those of steps: "pay/charge" for
// "charge". Therefore no other operation on the same store, in any service, may
// have the same name and another Lookup. Lookup would be asked about records
// that it does not know.
func Of[T any](op *once.Operation[T]) Operation {
	if op == nil {
		return Operation{}
	}
	return Operation{name: op.Name, validFor: op.KeyValidFor, ask: op.Ask}
}

// Stats counts what becomes of records. The fields may be read at any time. If
// several callers find out the same at once, each counts it. Give Reconcilers
// with different Operations separate Stats.
type Stats struct {
	Done       atomic.Int64 // it happened, or was rejected
	Freed      atomic.Int64 // it did not happen: the next call runs it
	Parked     atomic.Int64 // waits for a person, from now on
	Resumed    atomic.Int64 // by Resume
	Unanswered atomic.Int64 // there was no answer, or it waits for its caller; it will be asked about again
	Overtaken  atomic.Int64 // another caller decided, or is working on it

	Looks    atomic.Int64 // looks that read the whole list; the next four are from the latest of them
	Unknown  atomic.Int64 // unknown records of all operations
	Lapsed   atomic.Int64 // of these, records whose lease lapsed; an attempt has reported the others, see once.Record.Lapsed
	Orphaned atomic.Int64 // of all, records whose Operation this Reconciler does not have; another may
	Oldest   atomic.Int64 // how long the oldest had been unknown, in nanoseconds
}

// Run looks for records until ctx ends, and then returns nil. If the store or a
// Lookup fails, it logs that and continues. It returns an error only if the
// Reconciler is configured wrongly. The error says what to change.
func (r *Reconciler) Run(ctx context.Context) error {
	run, err := r.newRun()
	if err != nil {
		return err
	}
	idle := make(chan *worker)
	var all sync.WaitGroup
	defer all.Wait()
	wait := backoff.Backoff{First: run.Every, Limit: run.Every}
	trouble := backoff.Backoff{First: run.Every, Limit: 10 * run.Every}
	for ctx.Err() == nil {
		pause := wait.Next()
		due, err := run.find(ctx, false)
		if err == nil {
			trouble = backoff.Backoff{First: run.Every, Limit: 10 * run.Every}
		} else if ctx.Err() == nil {
			pause = trouble.Next()
			run.Logger.WarnContext(ctx, "reconcile: the store failed, and some outcomes stay unknown", logs.Spaced(""), "error", err)
		}
		for w, recs := range due { // no operation waits for another
			if w.busy {
				continue
			}
			w.busy = true
			all.Add(1)
			go func() {
				defer all.Done()
				w.work(ctx, recs)
				select {
				case idle <- w:
				case <-ctx.Done():
				}
			}()
		}
		rest(ctx, pause, idle)
	}
	return nil
}

// rest waits until the next look, and marks workers that are ready for more.
func rest(ctx context.Context, pause time.Duration, idle <-chan *worker) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case w := <-idle:
			w.busy = false
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Sweep looks once, and asks about all unknown records, however recent. It
// returns the error of the store or of ctx, or says that the Reconciler is
// configured wrongly. A record without an answer is not an error: it is counted
// and logged. Records that were read before the store failed are asked about as
// well.
func (r *Reconciler) Sweep(ctx context.Context) error {
	run, err := r.newRun()
	if err != nil {
		return err
	}
	due, err := run.find(ctx, true)
	errs := make(chan error, len(due))
	for w, recs := range due {
		go func() { errs <- w.sweep(ctx, recs) }()
	}
	for range due {
		err = errors.Join(err, <-errs)
	}
	return cmp.Or(err, ctx.Err())
}

func (r *Reconciler) newRun() (*run, error) {
	run := &run{Reconciler: *r, workers: make(map[string]*worker), told: make(map[string]bool), damaged: make(map[string]bool)}
	run.Every = min(cmp.Or(run.Every, time.Minute), time.Duration(longest)) // of which there is ten times as much
	run.AskTime = cmp.Or(run.AskTime, 30*time.Second)
	run.Logger = logs.Of(run.Logger)
	if run.Stats == nil {
		run.Stats = new(Stats)
	}
	lister, ok := once.As[once.Lister](r.Store)
	switch {
	case r.Store == nil:
		return nil, invalid("a Reconciler needs a Store")
	case !ok:
		return nil, invalid("the Store is not a once.Lister, so unknown records cannot be listed")
	case len(r.Operations) == 0:
		return nil, invalid("there are no Operations: make them with Of")
	case run.Every < 0 || run.AskTime < 0:
		return nil, invalid("Every and AskTime must not be negative")
	}
	run.lister = lister
	for _, op := range r.Operations {
		switch {
		case op.ask == nil || op.name == "":
			return nil, invalid("an Operation was not made by Of, or has no Name: for the effects of a consumer, that is the name of the consumer")
		case run.workers[op.name] != nil:
			return nil, invalid("the operation %q is there twice", op.name)
		case op.AtOnce < 0 || !(op.PerSecond >= 0): // NaN is neither
			return nil, invalid("operation %q: AtOnce and PerSecond must be positive, or 0", op.name)
		}
		if _, err := op.ask(context.Background(), r.Store, once.Record{}); err != nil { // asks about nothing, to check the declaration
			return nil, fmt.Errorf("reconcile: %w", err)
		}
		op.AtOnce = cmp.Or(op.AtOnce, 4)
		run.workers[op.name] = &worker{run: run, Operation: op}
	}
	return run, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: reconcile: %s", once.ErrInvalid, fmt.Sprintf(format, args...))
}
