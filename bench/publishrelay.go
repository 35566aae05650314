package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
)

// relayStages hold the contest of relays that publish a backlog to a broker
// that accepts everything at once.
func relayStages() (stages []stage) {
	for _, s := range []setting{settings()[0], settings()[3]} {
		stages = append(stages, stage{name: "outbox relay, " + s.name, loads: oneRelay, long: true, open: openRelaying(s)})
	}
	return append(stages, stage{name: "outbox relay, a million messages", loads: oneRelay, large: true, open: openSlices})
}

var oneRelay = []load{{name: "1 relay", workers: 1}}

// relaying is an arena of relays. In each turn they publish a backlog that was
// created before it, with a number of messages per millisecond of an ordinary
// turn.
type relaying struct {
	*postgres
	rows *pgstore.Store
	log  *pgstore.Store // nil: the server does not support it
}

func openRelaying(s setting) func(context.Context, *bench) (*arena, error) {
	return func(ctx context.Context, b *bench) (*arena, error) {
		p, err := openPostgres(ctx, b, s)
		if err != nil {
			return nil, err
		}
		r, err := newRelaying(ctx, b, p)
		if err != nil {
			p.close()
			return nil, err
		}
		variants := append(r.variants(), b.peers.open(ctx, p.dsn, turn.Relay, &b.report)...)
		closeAll := func() {
			b.peers.close(&b.report)
			p.close()
		}
		return &arena{close: closeAll, contest: func(load) contest {
			return contest{unit: fmt.Sprintf("message of a backlog of %d", turn.Backlog(b.turn)), variants: variants}
		}}, nil
	}
}

// rawTable is the table of a hand-written relay.
const rawTable = `CREATE TABLE raw (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, topic text NOT NULL,
	ordering_key text NOT NULL, produced timestamptz NOT NULL DEFAULT now(), body bytea NOT NULL)`

func newRelaying(ctx context.Context, b *bench, p *postgres) (*relaying, error) {
	r := &relaying{postgres: p, rows: pgstore.New(p.pool, &pgstore.Options{Schema: "once"})}
	if err := r.rows.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := p.pool.Exec(ctx, rawTable); err != nil {
		return nil, err
	}
	log, err := logStore(ctx, p, "once_log")
	if errors.Is(err, once.ErrInvalid) {
		b.report.note("messages in the log are left out: %v", err)
		return r, nil
	}
	r.log = log
	return r, err
}

func (r *relaying) variants() []variant {
	own := outbox.Relay{Store: r.rows}
	kept := outbox.Relay{Store: r.rows, Then: store.Keep}
	all := []variant{
		r.backlog("DELETE RETURNING of 500 in a loop", turn.Backlog, r.inRaw(), r.loop(500)),
		r.backlog("DELETE RETURNING of 1000 in a loop", turn.Backlog, r.inRaw(), r.loop(1000)),
		r.backlog("Relay", turn.Backlog, r.inOutbox(""), r.relay(own)),
		r.backlog("Relay, 10000 ordering keys", turn.Backlog, r.inOutbox("(i % 10000)::text"), r.relay(own)),
		r.backlog("Relay, Keep", turn.Backlog, r.inOutbox(""), r.relay(kept)),
	}
	if r.log != nil {
		all = append(all, r.backlog("Relay, OutboxLogOnly", turn.Backlog, r.inLog(), r.relay(outbox.Relay{Store: r.log})))
	}
	return all
}

// openSlices is an arena with one large backlog. It notes whether relays get
// slower as they drain it.
func openSlices(ctx context.Context, b *bench) (*arena, error) {
	p, err := openPostgres(ctx, b, settings()[0])
	if err != nil {
		return nil, err
	}
	r, err := newRelaying(ctx, b, p)
	if err != nil {
		p.close()
		return nil, err
	}
	million := func(time.Duration) int { return 1_000_000 }
	slow := func(name string, run func(context.Context, *blackHole) error) func(context.Context, *blackHole) error {
		return func(ctx context.Context, hole *blackHole) error {
			err := run(ctx, hole)
			b.report.note("%s, seconds for each tenth: %s", name, hole.tenths())
			return err
		}
	}
	variants := []variant{
		r.backlog("DELETE RETURNING of 500 in a loop", million, r.inRaw(), slow("DELETE RETURNING", r.loop(500))),
		r.backlog("Relay", million, r.inOutbox(""), slow("Relay", r.relay(outbox.Relay{Store: r.rows}))),
	}
	return &arena{close: p.close, contest: func(load) contest {
		return contest{unit: "message of a backlog of 1000000", variants: variants}
	}}, nil
}

// place is where a backlog is stored.
type place struct {
	fill    []string // statements; the last one takes the number of messages
	waiting string   // counts the remaining messages; empty: not possible
	clean   []string
}

func tidy(table string) []string { return []string{"VACUUM ANALYZE " + table, "CHECKPOINT"} }

func (r *relaying) inRaw() place {
	return place{fill: []string{"TRUNCATE raw", fillRawSQL}, waiting: "SELECT count(*) FROM raw", clean: tidy("raw")}
}

func (r *relaying) inOutbox(key string) place { return r.inOutboxOf("once.once_outbox", key) }

// inOutboxOf spreads messages over all lanes, as random IDs or ordering keys
// would.
func (r *relaying) inOutboxOf(table, key string) place {
	of, lane := key, "hashtext(k.key)"
	if key == "" {
		of, lane = "''", "hashint4(i)"
	}
	return place{fill: []string{"TRUNCATE " + table, `INSERT INTO ` + table + ` (lane, id, topic, ordering_key, produced, body)
SELECT ` + lane + ` & 15, ` + backlogID + `, '` + outboxTopic + `', k.key, '2026-01-02T03:04:05.678901Z', ` + backlogBody + `
FROM generate_series(1, $1::int) AS i CROSS JOIN LATERAL (SELECT ` + of + ` AS key) AS k`},
		waiting: "SELECT count(*) FROM " + table + " WHERE state <> 4", clean: tidy(table)}
}

// inLog writes what QueueOutbox writes, in one transaction. It first advances
// the slot past the writes of others, which a running relay would have read
// already.
func (r *relaying) inLog() place {
	return place{fill: []string{"CHECKPOINT", "SELECT pg_replication_slot_advance('once_log', pg_current_wal_lsn())", `SELECT count(pg_logical_emit_message(true, 'once_log.once_outbox.1', convert_to(
	'{"id":"' || ` + backlogID + ` || '","topic":"` + outboxTopic + `"}' || chr(10), 'UTF8') || ` + backlogBody + `))
FROM generate_series(1, $1::int) AS i`}, clean: []string{"CHECKPOINT"}}
}

// The bodies and IDs of a backlog contain the numbers of the messages, from 1.
const (
	backlogID   = `'00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0')`
	backlogBody = `convert_to(lpad(i::text, 300, 'x'), 'UTF8')`

	fillRawSQL = `INSERT INTO raw (id, topic, ordering_key, body)
SELECT ` + backlogID + `, '` + outboxTopic + `', '', ` + backlogBody + ` FROM generate_series(1, $1::int) AS i`
)

// backlog is a variant whose turn is a whole backlog. Its latency is that of
// the last message.
func (r *relaying) backlog(name string, size func(time.Duration) int, in place,
	run func(context.Context, *blackHole) error) variant {

	return variant{name, func(ctx context.Context, _ int, length time.Duration) (turn.Tally, error) {
		n := size(length)
		ctx, cancel := context.WithTimeout(ctx, longestTurn+time.Duration(n)*time.Millisecond/2)
		defer cancel()
		if err := r.fill(ctx, in, n); err != nil {
			return turn.Tally{}, err
		}
		hole := newBlackHole(n)
		tally, err := turn.Working(func() (turn.Tally, error) {
			hole.begun = time.Now()
			err := run(ctx, hole)
			took := time.Since(hole.begun)
			return turn.Tally{Units: n, PerSecond: float64(n) / took.Seconds(), P50: took, P99: took}, err
		})
		return tally, errors.Join(err, hole.check(), r.checkNone(ctx, in))
	}}
}

// fill creates the backlog.
func (r *relaying) fill(ctx context.Context, in place, n int) error {
	for i, statement := range slices.Concat(in.fill, in.clean) {
		var args []any
		if i == len(in.fill)-1 {
			args = []any{n}
		}
		if _, err := r.pool.Exec(ctx, statement, args...); err != nil {
			return err
		}
	}
	return nil
}

// checkNone reports published messages that are still stored as unpublished.
func (r *relaying) checkNone(ctx context.Context, in place) error {
	if in.waiting == "" {
		return nil
	}
	var left int
	err := r.pool.QueryRow(ctx, in.waiting).Scan(&left)
	if err == nil && left > 0 {
		err = fmt.Errorf("%d messages are still waiting", left)
	}
	return err
}

const rawSQL = `DELETE FROM raw WHERE seq = ANY (ARRAY(SELECT seq FROM raw ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING seq, id, topic, ordering_key, produced, body`

// loop is a hand-written relay.
func (r *relaying) loop(size int) func(context.Context, *blackHole) error {
	return func(ctx context.Context, hole *blackHole) error {
		for {
			n := 0
			err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
				ms, err := deleteSome(ctx, tx, size)
				if n = len(ms); err != nil || n == 0 {
					return err
				}
				return errors.Join(hole.Publish(ctx, ms)...)
			})
			if err != nil || n == 0 {
				return err
			}
		}
	}
}

func deleteSome(ctx context.Context, tx pgx.Tx, size int) (ms []*broker.Message, err error) {
	rows, err := tx.Query(ctx, rawSQL, size)
	if err != nil {
		return nil, err
	}
	var seq int64
	var m broker.Message
	_, err = pgx.ForEachRow(rows, []any{&seq, &m.ID, &m.Topic, &m.OrderingKey, &m.Time, &m.Body}, func() error {
		own := m
		m.Body = nil
		own.Header = map[string]string{outbox.SeqHeader: strconv.FormatInt(seq, 10)}
		ms = append(ms, &own)
		return nil
	})
	return ms, err
}

// relay runs a Relay until the backlog is empty, including the time to acquire
// its leases.
func (r *relaying) relay(relay outbox.Relay) func(context.Context, *blackHole) error {
	return func(ctx context.Context, hole *blackHole) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		hole.full = cancel
		relay.Publisher, relay.Stats = hole, new(outbox.Stats)
		if err := relay.Run(ctx); err != nil {
			return err
		}
		s := relay.Stats
		if n := s.Failed.Load() + s.Refused.Load() + s.Held.Load() + s.Stuck.Load() + s.Repeated.Load(); n > 0 {
			return fmt.Errorf("%d messages did not get through at once", n)
		}
		return nil
	}
}

// blackHole is a broker that accepts everything and counts how often each
// message arrived.
type blackHole struct {
	full func() // called when all messages have arrived
	room int64
	came atomic.Int64

	mu     sync.Mutex
	begun  time.Time
	times  []uint8
	passed []time.Time // when each tenth had arrived
}

func newBlackHole(n int) *blackHole {
	return &blackHole{full: func() {}, room: int64(n), times: make([]uint8, n)}
}

func (h *blackHole) Publish(_ context.Context, ms []*broker.Message) []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range ms {
		if n := numberOf(m.ID); n >= 0 && n < len(h.times) && len(m.Body) == bodySize {
			h.times[n]++
		}
	}
	came := h.came.Add(int64(len(ms)))
	for int64(len(h.passed)+1)*h.room <= 10*came {
		h.passed = append(h.passed, time.Now())
	}
	if came == h.room {
		h.full()
	}
	return nil
}

// tenths returns the seconds that each tenth of the messages took.
func (h *blackHole) tenths() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var parts []string
	for i, at := range h.passed {
		before := h.begun
		if i > 0 {
			before = h.passed[i-1]
		}
		parts = append(parts, fmt.Sprintf("%.2f", at.Sub(before).Seconds()))
	}
	return strings.Join(parts, " ")
}

func (h *blackHole) Close() error { return nil }

// numberOf returns the number of a message in a backlog, from 0.
func numberOf(id string) int {
	n, err := strconv.ParseInt(id[max(len(id)-12, 0):], 16, 64)
	if err != nil {
		return -1
	}
	return int(n) - 1
}

// check reports messages that did not arrive exactly once.
func (h *blackHole) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	missing, again := 0, 0
	for _, n := range h.times {
		if n == 0 {
			missing++
		} else if n > 1 {
			again++
		}
	}
	if missing+again > 0 || h.came.Load() != h.room {
		return fmt.Errorf("of %d messages %d were not published, and %d more than once", h.room, missing, again)
	}
	return nil
}
