package reconcile

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/chance"
	"github.com/effectively-once/once/internal/contain"
	"github.com/effectively-once/once/internal/logs"
)

const (
	page     = 200    // records that are read at once
	patience = 10     // a record is asked about once in this part of the time for which it has been unknown
	maxDue   = 10_000 // records of one operation that are in memory

	longest = float64(365 * 24 * time.Hour) // between two records: a Duration ends somewhere
)

// run is a Reconciler in progress.
type run struct {
	Reconciler
	lister  once.Lister
	workers map[string]*worker
	told    map[string]bool // operations without a reconciler that were logged

	damagedMu sync.Mutex // workers list, too
	damaged   map[string]bool
}

// find lists the unknown records, and sorts those that are due by their
// operation. If all is true, all of them are due, up to maxDue. If find fails,
// it also returns what it found before.
func (r *run) find(ctx context.Context, all bool) (due map[*worker][]once.Record, err error) {
	var unknown, lapsed, orphaned int64
	var oldest time.Duration
	due = make(map[*worker][]once.Record)
	seen := make(map[*worker]int)
	err = r.each(ctx, once.Key{}, func(rec once.Record) (more bool) {
		if unknown++; rec.Lapsed() {
			lapsed++
		}
		oldest = max(oldest, since(&rec))
		w := r.workers[operationOf(rec.Key)]
		switch {
		case w == nil:
			orphaned++
			r.tell(ctx, operationOf(rec.Key))
		case all && len(due[w]) < maxDue:
			due[w] = append(due[w], rec)
		case !all && r.isDue(&rec):
			if seen[w]++; seen[w] <= maxDue {
				due[w] = append(due[w], rec)
			} else if i := chance.N(seen[w]); i < maxDue { // the end of a long list has the same chance as its beginning
				due[w][i] = rec
			}
		}
		return true
	})
	if err != nil {
		return due, err
	}
	r.Stats.Unknown.Store(unknown)
	r.Stats.Lapsed.Store(lapsed)
	r.Stats.Orphaned.Store(orphaned)
	r.Stats.Oldest.Store(int64(oldest))
	r.Stats.Looks.Add(1)
	return due, nil
}

// each lists the unknown records after a key, until do returns false.
func (r *run) each(ctx context.Context, after once.Key, do func(once.Record) (more bool)) error {
	q := once.RecordQuery{Status: []once.Status{once.Unknown}, After: after, Limit: page}
	for {
		found, err := r.lister.List(ctx, q)
		if err != nil {
			return err
		}
		for _, damaged := range found.Damaged {
			r.tellDamaged(ctx, damaged)
		}
		for _, rec := range found.Records {
			if !do(rec) {
				return nil
			}
		}
		if q.After = found.Next; q.After == (once.Key{}) {
			return nil
		}
	}
}

// operationOf returns the operation of a key: the last step of its name.
func operationOf(k once.Key) string { return k.Operation[strings.LastIndexByte(k.Operation, '/')+1:] }

// since returns how long a record has been unknown, as far as is known.
func since(rec *once.Record) time.Duration {
	if rec.LeaseLeft < 0 {
		return -rec.LeaseLeft
	}
	return max(rec.Age, 0)
}

// tellDamaged logs, once for each, what cannot be read, and so is not asked about.
func (r *run) tellDamaged(ctx context.Context, err error) {
	r.damagedMu.Lock()
	defer r.damagedMu.Unlock()
	if text := err.Error(); !r.damaged[text] && len(r.damaged) < page {
		r.damaged[text] = true
		r.Logger.ErrorContext(ctx, "reconcile: a damaged record is left out", "error", err)
	}
}

func (r *run) tell(ctx context.Context, op string) {
	if !r.told[op] && len(r.told) < page {
		r.told[op] = true
		r.Logger.WarnContext(ctx, "reconcile: an operation has unknown outcomes and no reconciler",
			"operation", op)
	}
}

// isDue chooses at random, so that nothing has to be remembered about records.
func (r *run) isDue(rec *once.Record) bool {
	span := since(rec) / patience
	return span <= r.Every || chance.N(span) < r.Every
}

// worker handles the records of one operation.
type worker struct {
	*run
	Operation

	busy bool // until it has dealt with what it was given
	next time.Time
}

// sweep handles records. If they were too many, it also handles those of its
// operation that follow in the list.
func (w *worker) sweep(ctx context.Context, recs []once.Record) (err error) {
	for w.work(ctx, recs); len(recs) >= maxDue && err == nil; w.work(ctx, recs) {
		last := recs[len(recs)-1].Key
		recs = recs[:0]
		err = w.each(ctx, last, func(rec once.Record) (more bool) {
			if w.workers[operationOf(rec.Key)] == w {
				recs = append(recs, rec)
			}
			return len(recs) < maxDue
		})
	}
	return err
}

// work handles records.
func (w *worker) work(ctx context.Context, recs []once.Record) {
	places := make(chan struct{}, w.AtOnce)
	var all sync.WaitGroup
	defer all.Wait()
	for _, rec := range recs {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if w.pace(ctx) != nil { // with a place, so that no rate is saved up while waiting for one
			return
		}
		all.Add(1)
		go func() {
			defer all.Done()
			defer func() { <-places }()
			w.deal(ctx, rec)
		}()
	}
}

// pace waits until the next record may be started.
func (w *worker) pace(ctx context.Context) error {
	if w.PerSecond == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if w.next.Before(now) {
		w.next = now
	}
	wait := w.next.Sub(now)
	w.next = w.next.Add(time.Duration(min(float64(time.Second)/w.PerSecond, longest)))
	_ = backoff.Sleep(ctx, wait) // it may say nothing of a context that ends at the same time
	return ctx.Err()
}

// deal finds out about a record, if it is still unknown. It may have waited for
// long, and its age matters too.
func (w *worker) deal(ctx context.Context, rec once.Record) {
	limited, cancel := context.WithTimeout(ctx, w.AskTime)
	defer cancel()
	after, resumed := rec, false
	err := contain.Logged(ctx, w.Logger, "the Store", func() (err error) {
		now, err := w.Store.Get(limited, rec.Key)
		switch {
		case err != nil:
			return err
		case now.Status != once.Unknown:
			return once.ErrLeaseLost
		case w.Resume != nil:
			rec, resumed = now, true
			return w.resume(limited, rec)
		}
		rec = now
		after, err = w.ask(limited, w.Store, rec)
		return err
	})
	if ctx.Err() == nil || err == nil {
		w.note(ctx, rec, after, resumed, err)
	}
}

// resume returns an error if the record is unchanged afterwards.
func (w *worker) resume(ctx context.Context, rec once.Record) error {
	err := contain.Logged(ctx, w.Logger, "Resume", func() error { return w.Resume(ctx, rec.Key) })
	if err == nil || errors.Is(err, once.ErrRejected) {
		after, failed := w.Store.Get(ctx, rec.Key)
		if failed == nil && after.Status == once.Unknown && after.Attempt == rec.Attempt {
			return errors.New("reconcile: Resume left the record as it was: it did nothing, or called once.Do with another key")
		}
	}
	return err
}

// note counts and logs the result for a record.
func (w *worker) note(ctx context.Context, rec, after once.Record, resumed bool, err error) {
	log := w.Logger.With("key", rec.Key, "attempt", rec.Attempt)
	switch {
	case errors.Is(err, once.ErrLeaseLost), resumed && errors.Is(err, once.ErrInProgress):
		w.Stats.Overtaken.Add(1)
	case resumed && errors.Is(err, once.ErrParked):
		w.Stats.Parked.Add(1)
		log.ErrorContext(ctx, "reconcile: a person has to decide", "error", err)
	case err != nil && !(resumed && errors.Is(err, once.ErrRejected)):
		w.Stats.Unanswered.Add(1)
		log.WarnContext(ctx, "reconcile: no answer", logs.Spaced(""), "error", err)
	case resumed:
		w.Stats.Resumed.Add(1)
		log.InfoContext(ctx, "reconcile: abandoned work is done")
	case after.Status == once.Done:
		w.Stats.Done.Add(1)
		log.InfoContext(ctx, "reconcile: the effect had happened", "rejected", after.Outcome.Rejected)
	case after.Status == once.Absent:
		w.Stats.Freed.Add(1)
		log.InfoContext(ctx, "reconcile: the effect had not happened")
	case after.Status == once.Parked:
		w.Stats.Parked.Add(1)
		log.ErrorContext(ctx, "reconcile: a person has to decide", "reason", w.Store.Options().Sealing.OpenReason(after))
	case after.Attempt == rec.Attempt && after.Status == once.Unknown:
		w.Stats.Unanswered.Add(1) // of an operation that resends: its caller has to come
	default:
		w.Stats.Overtaken.Add(1)
	}
}
