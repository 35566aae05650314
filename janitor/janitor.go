package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/chance"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store"
)

// Janitor forgets data whose retention has passed. Store is required; the zero
// value of every other field is valid. It is not changed by use.
type Janitor struct {
	// Store is the store whose keys are forgotten. If it is a store.Shelf or a
	// store.Relayable, its messages are forgotten as well.
	Store once.Store

	// Every is the maximum time between two looks. A look continues until
	// nothing is left to forget. If the store fails, looks are up to ten times
	// as far apart. Default: 1 minute.
	Every time.Duration

	// Batch is how many records one transaction forgets. With Options.Partition
	// of pgstore, it is also how many records that are still needed are moved
	// out of a partition: see docs/partitions.md. Default: 1,000.
	Batch int

	// BatchTime limits one transaction. Default: 5 minutes, for stores that
	// forget by partitions; elsewhere it takes milliseconds.
	BatchTime time.Duration

	// Share is the maximum part of the time in which the store is kept at work.
	// After each transaction the Janitor pauses for long enough. Share bounds
	// each Janitor separately. Default: 0.1, at most 1.
	Share float64

	// KeepShelved is how long messages stay on the shelf after people had them
	// handled or discarded. Consumers that handle the shelf keep them for 90
	// days, which is the default.
	KeepShelved time.Duration

	// KeepPublished is how long messages stay in the outbox after a relay
	// published them with store.Keep. Such relays forget messages after their
	// own KeepFor, but only while they run. Default: 90 days. [Forever] leaves
	// it to the relays.
	KeepPublished time.Duration

	// KeepArchived is how long messages stay in the archive of the outbox, if
	// the store is a store.OutboxArchive: discarded messages, and those that a
	// relay ends with store.Archive. Default: 1 year. Use [Forever] if
	// something else empties the table.
	KeepArchived time.Duration

	// Archive, if set, gets records that are done before their outcomes are
	// forgotten. If it returns an error, the records are kept: the error is
	// logged, and they come again at the next look. Archive needs a store that
	// is a store.Archivable. With any other store, and with Options.Partition
	// of pgstore, Run and Sweep return once.ErrInvalid.
	//
	// Each outcome comes at least once, including rejections and omitted
	// outcomes. It comes again after a crash or an error, and to each of
	// several Janitors. Therefore write it by key and Owner, the random token
	// of the claim, which together identify one outcome for ever; attempts
	// begin at 1 again after a key was forgotten. Nothing comes for a key whose
	// outcome was forgotten before, or for the attempt count of failed work.
	//
	// All Janitors of the store must have an Archive. Do not call Forget, or
	// run once serve with a [janitor] or once bench on the store: they forget
	// without archiving. A key that is claimed anew after its KeepKey replaces
	// its row, so keep keys longer than outcomes, by more than the longest time
	// without a Janitor. Records that a person reopens do not come either.
	//
	// A damaged outcome (once.ErrCorrupt) neither comes nor is forgotten. That
	// is logged at each look, until somebody has repaired or deleted its row.
	//
	// Archive may keep the slice. The context ends after BatchTime. If Archive
	// ignores that and returns nil later, the records count as archived.
	Archive func(ctx context.Context, done []once.Record) error

	Logger *slog.Logger // failures of the store or the Archive; default: slog.Default()
	Stats  *Stats       // counts what is forgotten, if it is not nil
}

// Forever, as a retention, means that this Janitor never forgets.
const Forever = time.Duration(math.MaxInt64)

// Stats counts what is forgotten. The fields may be read at any time.
type Stats struct {
	Keys      atomic.Int64 // includes outcomes that are dropped before their key
	Shelved   atomic.Int64
	Published atomic.Int64
	Archived  atomic.Int64

	Looks  atomic.Int64 // looks that ended with nothing left to forget
	Behind atomic.Bool  // there may be more to forget now; if this persists, Share is too small or the store fails
}

// Run forgets until ctx ends, and then returns nil. If the store fails, it logs
// that and continues. It returns an error only if the Janitor is configured
// wrongly. The error says what to change.
func (j *Janitor) Run(ctx context.Context) error {
	run, err := j.newRun()
	if err != nil {
		return err
	}
	wait := backoff.Backoff{First: run.Every, Limit: run.Every}
	trouble := backoff.Backoff{First: run.Every, Limit: 10 * run.Every}
	for ctx.Err() == nil {
		pause := wait.Next()
		err := run.look(ctx)
		switch {
		case errors.Is(err, errCannotArchive):
			return err
		case err == nil:
			trouble = backoff.Backoff{First: run.Every, Limit: 10 * run.Every}
		case ctx.Err() == nil:
			pause = trouble.Next()
			run.complain(ctx, err)
		}
		_ = backoff.Sleep(ctx, pause)
	}
	return nil
}

// Sweep looks once, until nothing is left to forget. It returns the error of
// the store or of ctx, or says that the Janitor is configured wrongly. If one
// kind of data cannot be forgotten, the other kinds are forgotten anyway.
func (j *Janitor) Sweep(ctx context.Context) error {
	run, err := j.newRun()
	if err != nil {
		return err
	}
	return cmp.Or(run.look(ctx), ctx.Err())
}

// run is a Janitor in progress.
type run struct {
	Janitor
	kinds []kind
}

// kind is a kind of data that is forgotten.
type kind struct {
	name   string
	forget func(ctx context.Context, limit int) (batch, error)
	count  *atomic.Int64
}

// batch is the result of a transaction.
type batch struct {
	forgotten int
	more      bool          // there may be more
	elsewhere time.Duration // time in which the store was left alone
}

// simply returns a kind that one method of the store forgets.
func (r *run) simply(name string, forget func(ctx context.Context, limit int) (int, error), count *atomic.Int64) kind {
	return kind{name, func(ctx context.Context, limit int) (batch, error) {
		limited, cancel := context.WithTimeout(ctx, r.BatchTime)
		defer cancel()
		n, err := forget(limited, limit)
		return batch{forgotten: n, more: n >= limit}, err
	}, count}
}

const longestEvery = 365 * 24 * time.Hour // ten times as long is still a Duration

func (j *Janitor) newRun() (*run, error) {
	run := &run{Janitor: *j}
	run.Every = cmp.Or(run.Every, time.Minute)
	run.Batch = cmp.Or(run.Batch, 1000)
	run.BatchTime = cmp.Or(run.BatchTime, 5*time.Minute)
	run.Share = cmp.Or(run.Share, 0.1)
	run.KeepShelved = cmp.Or(run.KeepShelved, 90*24*time.Hour)
	run.KeepPublished = cmp.Or(run.KeepPublished, 90*24*time.Hour)
	run.KeepArchived = cmp.Or(run.KeepArchived, 365*24*time.Hour)
	run.Logger = logs.Of(run.Logger)
	if run.Stats == nil {
		run.Stats = new(Stats)
	}
	switch {
	case j.Store == nil:
		return nil, invalid("a Janitor needs a Store")
	case run.Every < 0 || run.Every > longestEvery || run.BatchTime < 0:
		return nil, invalid("Every and BatchTime must be positive, or 0, and Every no longer than a year")
	case run.Batch < 0:
		return nil, invalid("Batch must be positive, or 0")
	case !(run.Share > 0 && run.Share <= 1): // NaN is neither
		return nil, invalid("Share is a part of the time: above 0, up to 1, or 0 for the default")
	case run.KeepShelved < 0 || run.KeepPublished < 0 || run.KeepArchived < 0:
		return nil, invalid("KeepShelved, KeepPublished and KeepArchived must not be negative")
	}
	run.kinds = []kind{run.simply("key", j.Store.Forget, &run.Stats.Keys)}
	if j.Archive != nil {
		s, ok := once.As[store.Archivable](j.Store)
		if !ok {
			return nil, fmt.Errorf("%w: %T is not a store.Archivable", errCannotArchive, j.Store)
		}
		run.kinds = []kind{{"key", run.archiving(s), &run.Stats.Keys}}
	}
	if s, ok := once.As[store.Shelf](j.Store); ok && run.KeepShelved != Forever {
		run.kinds = append(run.kinds, run.simply("shelved", func(ctx context.Context, limit int) (int, error) {
			return s.ForgetShelved(ctx, run.KeepShelved, limit)
		}, &run.Stats.Shelved))
	}
	if s, ok := once.As[store.Relayable](j.Store); ok && run.KeepPublished != Forever {
		run.kinds = append(run.kinds, run.simply("published", func(ctx context.Context, limit int) (int, error) {
			return s.ForgetOutgoing(ctx, run.KeepPublished, limit)
		}, &run.Stats.Published))
	}
	if s, ok := once.As[store.OutboxArchive](j.Store); ok && run.KeepArchived != Forever {
		run.kinds = append(run.kinds, run.simply("archived", func(ctx context.Context, limit int) (int, error) {
			return s.ForgetArchived(ctx, run.KeepArchived, limit)
		}, &run.Stats.Archived))
	}
	return run, nil
}

func invalid(text string) error { return fmt.Errorf("%w: janitor: %s", once.ErrInvalid, text) }

// look forgets all there is, a batch of each kind at a time, so that no kind
// waits for another. A kind that fails is left to the next look.
func (r *run) look(ctx context.Context) (failed error) {
	for left := r.kinds; len(left) > 0; {
		var more []kind
		for _, k := range left {
			begun := time.Now()
			b, err := r.batch(ctx, k)
			switch {
			case errors.Is(err, errCannotArchive):
				return err
			case errors.Is(err, errors.ErrUnsupported) && !ofArchive(err): // by what the store wraps
			case err != nil:
				failed = errors.Join(failed, err)
				if ctx.Err() == nil { // a stop that cuts a batch off is not trouble with the store
					r.Stats.Behind.Store(true)
				}
			case b.more:
				more = append(more, k)
				r.Stats.Behind.Store(true)
			}
			if backoff.Sleep(ctx, r.rest(time.Since(begun)-b.elsewhere)) != nil || ctx.Err() != nil {
				return errors.Join(failed, ctx.Err())
			}
		}
		left = more
	}
	if failed == nil {
		r.Stats.Behind.Store(false)
		r.Stats.Looks.Add(1)
	}
	return failed
}

func (r *run) batch(ctx context.Context, k kind) (batch, error) {
	b, err := k.forget(ctx, r.Batch)
	k.count.Add(int64(b.forgotten))
	if b.forgotten > 0 {
		r.Logger.DebugContext(ctx, "janitor: event", "event", observe.Forgotten, "kind", k.name, "count", b.forgotten)
	}
	return b, err
}

const longestRest = float64(24 * time.Hour)

// rest returns how long to leave the store alone after it has worked for so
// long: up to half as long again as necessary, so that concurrent Janitors
// spread out.
func (r *run) rest(worked time.Duration) time.Duration {
	least := time.Duration(min(float64(worked)/r.Share-float64(worked), longestRest))
	return least + chance.N(least/2+1)
}
