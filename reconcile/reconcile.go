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

// Reconciler asks about unknown outcomes. Store and Operations are mandatory; the zero value of all other fields works.
// It is not changed by use. Any number of them may run on one store; AtOnce and PerSecond hold for each.
type Reconciler struct {
	Store      once.Store
	Operations []Operation

	// Every is the time between two looks for records, at most. What has been unknown for long is not asked about at each
	// look, but at random: about once in a tenth of the time that has passed. While the store is in trouble, looks are up to ten times as far apart. Default a minute.
	Every time.Duration

	// AskTime is how long the answer about one record may take, and a Resume with all its work: their context ends then.
	// One that does not heed it keeps its place among AtOnce, and Run from returning. Default 30 seconds.
	AskTime time.Duration

	Logger *slog.Logger // of what is found out, and what cannot be; default: slog.Default()
	Stats  *Stats       // counts what becomes of records, if it is not nil
}

// Operation is an operation whose records are looked after: made by [Of], and then changed where the defaults do not
// fit.
type Operation struct {
	AtOnce    int     // how many records are dealt with at the same time; default 4
	PerSecond float64 // how many are begun with in a second, at most; default: no limit

	// Resume brings a unit of work to its end that its caller has abandoned. It is called for each unknown record, instead
	// of asking, and does what the caller did: it comes to once.Do, with the same key, which asks about the attempt
	// before, as always. Another key runs the work a second time: mind the scope; and of a step ("pay/charge") it is the
	// whole work that has to be called. Default: records are asked about, and what may be run again waits for its caller.
	Resume func(context.Context, once.Key) error

	name string
	ask  func(context.Context, once.Store, once.Record) (once.Record, error)
}

// Of is an operation as it is declared for once.Do. All records of its name are taken for its own, also where it is a
// step: of "charge" those of "pay/charge". So no other operation on the same store, of whatever service, may have its
// name and another Lookup: it would be asked about what it does not know.
func Of[T any](op *once.Operation[T]) Operation {
	if op == nil {
		return Operation{}
	}
	return Operation{name: op.Name, ask: op.Ask}
}

// Stats counts what becomes of records. The fields may be read at any time. Several who find out the same at once count
// it each. Reconcilers with different Operations have Stats of their own.
type Stats struct {
	Done       atomic.Int64 // it happened, or was rejected
	Freed      atomic.Int64 // it did not happen: the next call runs it
	Parked     atomic.Int64 // waits for a person, from now on
	Resumed    atomic.Int64 // by Resume
	Unanswered atomic.Int64 // there was no answer, or it waits for its caller; it is asked about again
	Overtaken  atomic.Int64 // somebody else decided, or is at work on it

	Looks    atomic.Int64 // how many have read the whole list; the next three are of the last of them
	Unknown  atomic.Int64 // how many there were, whatever their operation
	Orphaned atomic.Int64 // of these, how many are not of the Operations: nobody looks after them, or another Reconciler
	Oldest   atomic.Int64 // for how long the oldest of them had been unknown, in nanoseconds
}

// Run looks again and again, until ctx ends, and returns nil then. Trouble with the store, or with those who are asked,
// is logged, and it goes on; an error means that the Reconciler is set up wrong: its text says what to do.
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
			run.Logger.WarnContext(ctx, "reconcile: the store is in trouble, and not all is found out", logs.Spaced(""), "error", err)
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

// rest waits until the next look, and takes note of workers that are ready for more.
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

// Sweep looks once, and asks about everything that is unknown, for however long it has been. The error is the store's,
// that of ctx, or says that the Reconciler is set up wrong; what could not be found out is no error: it is counted and
// logged. What was read before the store failed is asked about all the same.
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
	run := &run{Reconciler: *r, workers: make(map[string]*worker), told: make(map[string]bool)}
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
		return nil, invalid("the Store is no once.Lister: what is unknown there is found only by its key")
	case len(r.Operations) == 0:
		return nil, invalid("there are no Operations: make them by Of")
	case run.Every < 0 || run.AskTime < 0:
		return nil, invalid("Every and AskTime must not be negative")
	}
	run.lister = lister
	for _, op := range r.Operations {
		switch {
		case op.ask == nil || op.name == "":
			return nil, invalid("an Operation was not made by Of, or has no Name")
		case run.workers[op.name] != nil:
			return nil, invalid("the operation %q is there twice", op.name)
		case op.AtOnce < 0 || !(op.PerSecond >= 0): // NaN is neither
			return nil, invalid("operation %q: AtOnce and PerSecond must be positive, or 0", op.name)
		}
		if _, err := op.ask(context.Background(), r.Store, once.Record{}); err != nil { // about nothing: is it declared well?
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
