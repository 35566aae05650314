package pgstore_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Plans that were made while the outbox was empty are still good when it is
// full and was not analyzed since.
func TestPlansOfAnEmptyOutboxReadNoMoreThanTheyNeed(t *testing.T) {
	f := newFixture(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	must(t, f.admin, `ALTER TABLE `+f.outbox()+` SET (autovacuum_enabled = off)`)
	fill := func(n int) {
		must(t, f.admin, `INSERT INTO `+f.outbox()+` (lane, id, topic, ordering_key, produced, header)
			SELECT i % 16, 'm' || i, 't', '', '', '' FROM generate_series(1, $1) AS i`, n)
	}
	lanes := make([]int, store.Lanes)
	for i := range lanes {
		lanes[i] = i
	}
	relay := random()
	if _, err := f.LeaseLanes(t.Context(), relay, time.Hour, lanes); err != nil {
		t.Fatal(err)
	}
	once := func(limit int) {
		t.Helper()
		ms, err := f.Outgoing(t.Context(), store.OutgoingQuery{Lanes: lanes, Limit: limit, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := f.Sent(t.Context(), relay, ms, store.Delete); err != nil || n != limit || len(ms) != limit {
			t.Fatalf("%d were read and %d ended, want %d; %v", len(ms), n, limit, err)
		}
	}
	for range 10 { // then the server keeps a plan for any arguments
		fill(1)
		once(1)
	}
	fill(50_000)
	once(500)
	waitFor(t, func() bool { // until the server has updated its statistics
		must(t, f.pool, `SELECT 1`)
		return f.number(t, `SELECT n_tup_del FROM pg_stat_user_tables WHERE relid = '`+f.outbox()+`'::regclass`) >= 510
	})
	read := f.number(t, `SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables
		WHERE relid = '`+f.outbox()+`'::regclass`)
	if read > 10_000 {
		t.Errorf("%d rows were read to end 510", read)
	}
}
