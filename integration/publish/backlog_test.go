//go:build linux

package publish

import (
	"context"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/outbox"
)

const (
	backlogRows  = 200_000
	backlogFewer = 10 // times as many rows are compared with these
)

// TestBacklogCostsTheSamePerRow publishes a large backlog, with and without a
// long transaction that keeps PostgreSQL from removing deleted rows. It counts
// pages, because time depends on what else the machine does. The deleted rows
// are passed again by each read, which is why there are some pages more beside
// the transaction.
func TestBacklogCostsTheSamePerRow(t *testing.T) {
	const rows = backlogRows
	for _, open := range []bool{false, true} {
		name := "alone"
		if open {
			name = "beside a transaction that stays open"
		}
		t.Run(name, func(t *testing.T) {
			few, many := pagesPerRow(t, rows/backlogFewer, open), pagesPerRow(t, rows, open)
			t.Logf("%.2f pages for each of %d rows, %.2f for each of %d", few, rows/backlogFewer, many, rows)
			if many > 2*few { // what grows with the rows would be backlogFewer times as many
				t.Errorf("a row took %.2f pages in a backlog of %d rows, and %.2f in one of %d: more than twice as many",
					few, rows/backlogFewer, many, rows)
			}
		})
	}
}

// pagesPerRow publishes a backlog in a new database and returns how many pages
// of the table and its indexes PostgreSQL looked at for each row.
func pagesPerRow(t *testing.T, rows int, beside bool) float64 {
	p := engines.New(t, pgTable)
	w := newWorldAt(t, p)
	w.apart(t, p, func(w *world) {
		w.Exec(t, `INSERT INTO `+table+` (lane, id, topic, body)
			SELECT n % 16, 'row-' || n, 'orders', convert_to(repeat('x', 100), 'UTF8') FROM generate_series(1, $1) AS n`, rows)
		w.Exec(t, "VACUUM ANALYZE "+table)
	})
	if beside {
		x, end, err := w.begin(t.Context())
		must(t, err)
		defer end.rollback()
		must(t, x.put(0, &broker.Message{Topic: "orders", ID: "open"}))
	}
	before := w.pages(t)
	c := new(countingPublisher)
	w.apart(t, p, func(w *world) {
		stop := run(t, &outbox.Relay{Store: w.store, Publisher: c, Logger: testLogger(t)})
		await(t, "all rows are published", func() bool { return int(c.published.Load()) >= rows })
		stop()
	})
	pages := w.pages(t) - before
	if left := w.waiting(t); int(c.published.Load()) != rows || len(left) > 0 {
		t.Errorf("%d of %d rows were published, and %v are left", c.published.Load(), rows, left)
	}
	return float64(pages) / float64(rows)
}

// apart has connections of its own. Each reports what it has read before it is
// gone.
func (w *world) apart(t *testing.T, p engines.Place, do func(*world)) {
	place, err := url.Parse(p.DSN)
	must(t, err)
	q := place.Query()
	q.Set("application_name", "apart")
	place.RawQuery = q.Encode()
	p.DSN = place.String()
	another, err := open(p)
	must(t, err)
	do(another)
	another.Close()
	await(t, "the connections are gone", func() bool {
		return w.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'apart'") == 0
	})
}

// pages is how many pages of the outbox's table and its indexes were looked at
// by connections that are gone.
func (w *world) pages(t *testing.T) int {
	return w.count(t, `SELECT coalesce(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read, 0)
		FROM pg_statio_user_tables WHERE relid = '`+table+`'::regclass`)
}

// countingPublisher accepts all messages.
type countingPublisher struct{ published atomic.Int64 }

func (c *countingPublisher) Publish(_ context.Context, ms []*broker.Message) []error {
	c.published.Add(int64(len(ms)))
	return nil
}

func (c *countingPublisher) Close() error { return nil }
