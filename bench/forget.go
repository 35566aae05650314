package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/store/pgstore"
)

// expiredPerMillisecond is the number of expired keys at the beginning of a
// round, per millisecond of a turn. As many are added before the next round.
const expiredPerMillisecond = 1200

// forgetStages measure claims that run concurrently with Forget.
func forgetStages() []stage {
	return []stage{{name: "claims beside forgetting", loads: workers(8), open: openForget}}
}

func openForget(ctx context.Context, b *bench) (*arena, error) {
	p, err := openPostgres(ctx, b, setting{name: "fast disk"})
	if err != nil {
		return nil, err
	}
	store := pgstore.New(p.pool, &pgstore.Options{Schema: "once"})
	if err := store.Migrate(ctx); err != nil {
		p.close()
		return nil, err
	}
	f := &forgetting{p: p, store: store, expired: b.turn.Milliseconds() * expiredPerMillisecond}
	closeAll := func() {
		b.report.note("beside the claims, %.0f keys per second were forgotten", f.rate())
		p.close()
	}
	return &arena{close: closeAll, contest: func(load) contest {
		return contest{unit: "claim", latency: true, before: f.expire, variants: []variant{
			repeated("Claim", f.claim),
			{"Claim beside Forget(1000) in a loop", f.beside(1000)},
			{"Claim beside Forget(10000) in a loop", f.beside(10_000)},
		}}
	}}, nil
}

type forgetting struct {
	p         *postgres
	store     *pgstore.Store
	expired   int64
	forgotten atomic.Int64
	took      atomic.Int64 // nanoseconds
}

func (f *forgetting) rate() float64 {
	return float64(f.forgotten.Load()) / max(time.Duration(f.took.Load()).Seconds(), 1e-9)
}

func (f *forgetting) claim(ctx context.Context) error {
	_, err := f.store.Claim(ctx, newRequest())
	return err
}

// expire inserts expired keys.
func (f *forgetting) expire(ctx context.Context) error {
	_, err := f.p.pool.Exec(ctx, fmt.Sprintf(fillSQL, "once_"), f.expired, distantPast)
	return err
}

func (f *forgetting) beside(limit int) func(context.Context, int, time.Duration) (turn.Tally, error) {
	return func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		var forgetting sync.WaitGroup
		var over atomic.Bool
		var failure error
		forgetting.Go(func() { failure = f.forgetUntil(ctx, limit, &over) })
		tally, err := turn.Run(ctx, workers, length, f.claim)
		over.Store(true)
		forgetting.Wait()
		return tally, errors.Join(err, failure)
	}
}

func (f *forgetting) forgetUntil(ctx context.Context, limit int, over *atomic.Bool) error {
	for begun := time.Now(); !over.Load(); begun = time.Now() {
		n, err := f.store.Forget(ctx, limit)
		if err != nil {
			return err
		}
		if n < limit {
			return fmt.Errorf("nothing was left to forget before the turn was over: make it shorter with -turn")
		}
		f.forgotten.Add(int64(n))
		f.took.Add(int64(time.Since(begun)))
	}
	return nil
}
