package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store"
)

// Janitor forgets what has had its time. Store is mandatory; the zero value of all other fields works. It is not
// changed by use.
type Janitor struct {
	// Store is whose keys are forgotten. If it is a store.Shelf or a store.Relayable, so are the messages that have had
	// their time there.
	Store once.Store

	// Every is the time between two looks, at most. A look goes on until nothing is left to forget. While the store
	// is in trouble, looks are up to ten times as far apart. Default a minute.
	Every time.Duration

	// Batch is how much is forgotten in one transaction. With Options.Partition of pgstore it also is how many
	// records that are still needed are moved out of a partition: see docs/partitions.md. Default 1,000.
	Batch int

	// BatchTime is how long one transaction may take before it is given up. Default 5 minutes: that is for stores that
	// forget by partitions, elsewhere it takes milliseconds.
	BatchTime time.Duration

	// Share is the part of the time in which the store is kept at work, at most: after each transaction it is left alone
	// for long enough. It holds for each Janitor. Default 0.1, at most 1.
	Share float64

	// KeepShelved is how long messages stay on the shelf after people had them handled or discarded. Consumers that
	// attend to the shelf keep them for 90 days, which is the default.
	KeepShelved time.Duration

	// KeepPublished is how long messages stay in the outbox after a relay has published them with store.Keep. Relays
	// that keep messages forget them after their own KeepFor, but only as long as such a relay runs. Default 90 days;
	// [Forever] leaves it to the relays.
	KeepPublished time.Duration

	// KeepArchived is how long messages stay in the archive of the outbox, if the store is a store.OutboxArchive: those
	// that people have discarded, and those that a relay ends with store.Archive. Default a year. [Forever] is for who
	// empties the table by other means.
	KeepArchived time.Duration

	// Archive, if it is set, gets records that are done before their outcomes are forgotten. An error keeps them: it is
	// logged, and they come again with the next look. It needs a store that is a store.Archivable; with any other, and with
	// Options.Partition of pgstore, Run and Sweep are once.ErrInvalid.
	//
	// Each outcome comes at least once, rejections and those that were omitted among them: again after a crash or an error,
	// and to each of several Janitors. So write it by key and Owner, the random token of the claim, which name one outcome
	// for ever; attempts begin at 1 again when a key was forgotten. Nothing comes for a key whose outcome was forgotten
	// before, and for the count of attempts that failed.
	//
	// What forgets without asking is not to be had beside it: all Janitors of the store have an Archive, nobody calls Forget,
	// and neither once serve with a [janitor] nor once bench is at work there. A key that is claimed anew when its KeepKey
	// has passed takes its row: so keep keys for longer than outcomes, by more than no Janitor may be there. What a person
	// reopens does not come either.
	//
	// An outcome that is not what was recorded (a damaged row: once.ErrCorrupt) does not come, and is not forgotten: that is
	// logged with each look, until somebody has mended or deleted its row.
	//
	// The slice is Archive's to keep. The context ends after BatchTime. If Archive takes no notice of that, and returns nil
	// later, it has taken them all the same.
	Archive func(ctx context.Context, done []once.Record) error

	Logger *slog.Logger // of trouble with the store or the Archive; default: slog.Default()
	Stats  *Stats       // counts what is forgotten, if it is not nil
}

// Forever, as how long something is kept, says that this Janitor never forgets it.
const Forever = time.Duration(math.MaxInt64)

// Stats counts what is forgotten. The fields may be read at any time.
type Stats struct {
	Keys      atomic.Int64 // an outcome that is dropped before its key counts as well
	Shelved   atomic.Int64
	Published atomic.Int64
	Archived  atomic.Int64

	Looks  atomic.Int64 // how many ended with nothing left to forget
	Behind atomic.Bool  // there may be more to forget now: if it stays so, Share is too small or the store in trouble
}

// Run forgets again and again, until ctx ends, and returns nil then. Trouble with the store is logged, and it goes
// on; an error means that the Janitor is set up wrong: its text says what to do.
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

// Sweep looks once, until nothing is left to forget. The error is the store's, that of ctx, or says that the Janitor
// is set up wrong. If one kind cannot be forgotten, the others are all the same.
func (j *Janitor) Sweep(ctx context.Context) error {
	run, err := j.newRun()
	if err != nil {
		return err
	}
	return cmp.Or(run.look(ctx), ctx.Err())
}

// run is a Janitor that runs.
type run struct {
	Janitor
	kinds []kind
}

// kind is something that is forgotten.
type kind struct {
	name   string
	forget func(ctx context.Context, limit int) (batch, error)
	count  *atomic.Int64
}

// batch is how a transaction went.
type batch struct {
	forgotten int
	more      bool          // there may be more
	elsewhere time.Duration // when the store was left alone
}

// simply is a kind that one call of the store forgets.
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
			return nil, fmt.Errorf("%w: %T is no store.Archivable", errCannotArchive, j.Store)
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

// look forgets what there is, a batch of each kind at a time, so that none waits for another with much to do. A kind
// that fails is left to the next look.
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

// rest is how long the store is left alone after it was at work for so long: up to half as long again as it has to
// be, so that those who run side by side do not meet again.
func (r *run) rest(worked time.Duration) time.Duration {
	least := time.Duration(min(float64(worked)/r.Share-float64(worked), longestRest))
	return least + rand.N(least/2+1)
}
