package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// worked handles messages in a loop, each in its own transaction.
type worked func(context.Context, []*broker.Message) error

// bare is the plain transaction.
func (c *consume) bare(handle func(context.Context, pgx.Tx, []*broker.Message) error) worked {
	return func(ctx context.Context, ms []*broker.Message) error {
		return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return handle(ctx, tx, ms) })
	}
}

// inLoops runs workers that each receive, handle and acknowledge messages.
// Workers of a log have one partition each.
func inLoops(name string, size int, source *stream, work worked) variant {
	return variant{name, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		m := turn.NewMeter(length, func() { cancel(errTurnOver) })
		var running sync.WaitGroup
		for w := range workers {
			running.Go(func() {
				if err := loop(ctx, source.share(w).telling(m.Done), size, work); err != nil {
					cancel(err)
				}
			})
		}
		running.Wait()
		if err := context.Cause(ctx); !errors.Is(err, errTurnOver) {
			return turn.Tally{}, err
		}
		return m.Tally()
	}}
}

var errTurnOver = errors.New("the turn is over")

// loop runs until the context ends, and finishes its current message.
func loop(ctx context.Context, source *stream, size int, work worked) error {
	session, err := source.Open(ctx, size)
	if err != nil {
		return err
	}
	patient := context.WithoutCancel(ctx)
	ms := make([]*broker.Message, 0, size)
	for {
		ds, err := session.Receive(ctx, size)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		ms = ms[:0]
		for _, d := range ds {
			ms = append(ms, d.Message)
		}
		if err := work(patient, ms); err != nil {
			return err
		}
		if err := session.Ack(patient, ds); err != nil {
			return err
		}
	}
}

// guard runs a Consumer for a turn. If its source repeats messages, they are
// handled before the first turn.
func guard(name string, source *stream, c inbox.Consumer) variant {
	c.Name, c.Source = source.name, source
	seeded := source.known == 0
	return variant{name, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		c.Concurrency = workers
		if !seeded {
			if err := seedKnown(ctx, c, source); err != nil {
				return turn.Tally{}, err
			}
			seeded = true
		}
		ctx, cancel := context.WithTimeout(ctx, longestTurn+10*length)
		defer cancel()
		m := turn.NewMeter(length, cancel)
		if err := runCounted(ctx, c, source.telling(m.Done)); err != nil {
			return turn.Tally{}, err
		}
		return m.Tally()
	}}
}

// longestTurn limits a turn in which nothing is done.
const longestTurn = 30 * time.Second

// runCounted runs a consumer and reports unexpected events as errors.
func runCounted(ctx context.Context, c inbox.Consumer, source *stream) error {
	c.Source, c.Stats = source, new(inbox.Stats)
	if err := c.Run(ctx); err != nil {
		return err
	}
	s := c.Stats
	if n := s.Failed.Load() + s.Shelved.Load() + s.Parked.Load() + s.Prevented.Load(); n > 0 {
		return fmt.Errorf("%d messages were not handled", n)
	}
	if source.known > 0 && s.Handled.Load() > 0 || source.known == 0 && s.Duplicates.Load() > 0 {
		return fmt.Errorf("%d messages were handled and %d were duplicates: either of them is wrong",
			s.Handled.Load(), s.Duplicates.Load())
	}
	return nil
}

// seedKnown handles all messages of a source.
func seedKnown(ctx context.Context, c inbox.Consumer, source *stream) error {
	ctx, cancel := context.WithTimeout(ctx, longestTurn)
	defer cancel()
	var done atomic.Int64
	fresh := source.telling(func(messages int, _ time.Duration) {
		if done.Add(int64(messages)) >= source.known {
			cancel()
		}
	})
	fresh.known, fresh.again = 0, false
	if err := runCounted(ctx, c, fresh); err != nil {
		return err
	}
	if n := done.Load(); n < source.known {
		return fmt.Errorf("%d messages of %d could be handled in advance", n, source.known)
	}
	return nil
}
