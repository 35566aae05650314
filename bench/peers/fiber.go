package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/gofiber/storage/postgres/v3"

	"github.com/effectively-once/once/bench/internal/turn"
)

// addFiber adds the storage calls of Fiber's idempotency middleware for a new
// key: a Get before its lock and one after it, which find nothing, and a Set of
// the answer after the handler. Its default lock is in memory.
func (o *opened) addFiber() (err error) {
	defer func() { // it panics if it cannot prepare its table
		if p := recover(); p != nil {
			err = fmt.Errorf("fiber storage: %v", p)
		}
	}()
	storage := postgres.New(postgres.Config{DB: o.pool})
	answer := []byte(answer300)
	o.closers = append(o.closers, func() { _ = storage.Close() })
	o.add(peer{
		turn.Peer{Name: "Fiber storage/postgres " + version("github.com/gofiber/storage/postgres/v3") + ", Get, Get, Set", Scenario: turn.TwoPhase},
		func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
			return turn.Run(ctx, workers, length, func(context.Context) error {
				key := rand.Text()
				for range 2 {
					if _, err := storage.Get(key); err != nil {
						return err
					}
				}
				return storage.Set(key, answer, 24*time.Hour)
			})
		}})
	return nil
}
