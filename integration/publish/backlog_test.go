//go:build linux

package publish

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
)

const (
	backlogRows     = 200_000
	backlogRowsSoak = 1_000_000
	backlogStep     = 10_000
)

// TestBacklogCostsTheSamePerRow publishes a large backlog, with and without a
// long transaction that keeps PostgreSQL from removing deleted rows.
func TestBacklogCostsTheSamePerRow(t *testing.T) {
	rows := backlogRows
	if soaking(t) > 0 {
		rows = backlogRowsSoak
	}
	for _, open := range []bool{false, true} {
		name := "alone"
		if open {
			name = "beside a transaction that stays open"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, pgTable)
			w.Exec(t, `INSERT INTO `+table+` (lane, id, topic, body)
				SELECT n % 16, 'row-' || n, 'orders', convert_to(repeat('x', 100), 'UTF8') FROM generate_series(1, $1) AS n`, rows)
			w.Exec(t, "VACUUM ANALYZE "+table)
			if open {
				x, end, err := w.begin(t.Context())
				must(t, err)
				must(t, put(x, "open", "", false))
				defer end.rollback()
			}
			c := &clockedPublisher{begun: time.Now()}
			r := &outbox.Relay{Store: w.store, Publisher: c, Logger: testLogger(t)}
			stop := run(t, r)
			begun := time.Now()
			for last := 0; last < rows/backlogStep; { // as long as it goes on
				await(t, "the next rows are published", func() bool { return c.steps() > last })
				last = c.steps()
			}
			settled(t, patience, func() []string { return w.waiting(t) })
			stop()
			took := time.Since(begun)
			if n := int(c.published.Load()); n != rows {
				t.Errorf("%d rows were published, and not %d", n, rows)
			}
			first, last := c.quarters(rows)
			t.Logf("%d rows in %v; %d rows took %v in the first quarter, %v in the last", rows, took.Round(time.Millisecond),
				backlogStep, first, last)
			if last > 3*first { // what grows with the rows would be 20 times as long
				t.Errorf("%d rows took %v in the first quarter, and %v in the last: more than three times as long",
					backlogStep, first, last)
			}
		})
	}
}

// clockedPublisher accepts all messages, and records the time of each call.
type clockedPublisher struct {
	begun     time.Time
	published atomic.Int64
	times     [backlogRowsSoak/backlogStep + 1]atomic.Int64 // since begun, when so many steps were done
}

func (c *clockedPublisher) Publish(_ context.Context, ms []*broker.Message) []error {
	n := c.published.Add(int64(len(ms)))
	if step := n / backlogStep; step > (n-int64(len(ms)))/backlogStep && int(step) < len(c.times) {
		c.times[step].Store(int64(time.Since(c.begun)))
	}
	return nil
}

func (c *clockedPublisher) Close() error { return nil }

func (c *clockedPublisher) steps() int { return int(c.published.Load()) / backlogStep }

// quarters returns the average time of a call in the first and in the last
// quarter. The first call is left out, because it waits for leases.
func (c *clockedPublisher) quarters(rows int) (first, last time.Duration) {
	steps := rows / backlogStep
	quarter := steps / 4
	between := func(from, to int) time.Duration {
		return time.Duration(c.times[to].Load()-c.times[from].Load()) / time.Duration(to-from)
	}
	return between(1, 1+quarter), between(steps-quarter, steps)
}
