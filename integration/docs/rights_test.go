package docs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// office is a database whose roles have exactly the rights that docs/security.md
// gives them.
type office struct {
	admin  *pgxpool.Pool
	schema string
	prefix string // of the roles, which all databases of a server share
}

// TestRightsAreEnough checks on PostgreSQL that each role of docs/security.md can
// do its work.
func TestRightsAreEnough(t *testing.T) {
	o := newOffice(t, rights(t))
	for _, job := range jobs {
		if err := job.work(t.Context(), o.as(t, job.role)); err != nil {
			t.Errorf("%s, as %s: %v", job.name, job.role, err)
		}
	}
}

// TestRightsEndSomewhere checks that roles cannot do the work of other roles.
func TestRightsEndSomewhere(t *testing.T) {
	o := newOffice(t, rights(t))
	for role, statements := range map[string][]string{
		"app":      {"SELECT id FROM once_outbox", "SELECT id FROM once_outbox_archive", "UPDATE once_lane SET relay = NULL", "DELETE FROM once_schema", "DROP TABLE once_record"},
		"relay":    {"SELECT id FROM once_record", "SELECT id FROM once_shelf", "INSERT INTO once_outbox (id, topic) VALUES ('x', 'y')"},
		"janitor":  {"INSERT INTO once_record DEFAULT VALUES", "INSERT INTO once_outbox_archive (seq) VALUES (1)", "INSERT INTO once_outbox (id, topic) VALUES ('x', 'y')"},
		"operator": {"DELETE FROM once_record", "DELETE FROM once_shelf", "DELETE FROM once_position", "INSERT INTO once_outbox (id, topic) VALUES ('x', 'y')", "SELECT id FROM once_outbox_archive"},
		"reader":   {"UPDATE once_record SET status = 4", "DELETE FROM once_outbox", "INSERT INTO once_lane (lane) VALUES (3)"},
	} {
		s := o.as(t, role)
		for _, statement := range statements {
			var refused *pgconn.PgError
			if _, err := s.pool.Exec(t.Context(), statement); !errors.As(err, &refused) || refused.Code != "42501" {
				t.Errorf("%s may do: %s (%v)", role, statement, err)
			}
		}
	}
}

// rights returns the statements of the page.
func rights(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(CREATE ROLE .*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/security.md has %d blocks that begin with CREATE ROLE", len(blocks))
	}
	return blocks[0][1]
}

func newOffice(t *testing.T, rights string) *office {
	t.Helper()
	admin := connect(t, "", "")
	testenv.CheckPostgres(t, func(query string) (answer string, err error) {
		return answer, admin.QueryRow(t.Context(), query).Scan(&answer)
	})
	name := fmt.Sprintf("docs_%d_%d", os.Getpid(), time.Now().UnixNano())
	o := &office{schema: name, prefix: name + "_"}
	perform(t, admin, "CREATE SCHEMA "+name)
	o.admin = connect(t, name, "")
	t.Cleanup(func() {
		for _, role := range []string{"app", "relay", "janitor", "operator", "reader"} {
			_, _ = admin.Exec(context.Background(), "DROP OWNED BY "+o.prefix+role+"; DROP ROLE "+o.prefix+role)
		}
		_, _ = admin.Exec(context.Background(), "DROP SCHEMA "+name+" CASCADE")
	})
	if err := pgstore.New(o.admin, nil).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	perform(t, o.admin, strings.ReplaceAll(strings.ReplaceAll(rights, "shop_", o.prefix), "SCHEMA public", "SCHEMA "+name))
	return o
}

// staff is a role that does its work.
type staff struct {
	*pgstore.Store
	pool *pgxpool.Pool
	own  *pgstore.Store // of the owner of the tables, who prepares what the work is about
}

func (o *office) as(t *testing.T, role string) staff {
	t.Helper()
	pool := connect(t, o.schema, o.prefix+role)
	return staff{pgstore.New(pool, nil), pool, pgstore.New(o.admin, nil)}
}

func connect(t *testing.T, schema, role string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	if schema != "" {
		config.ConnConfig.RuntimeParams["search_path"] = schema
	}
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		if role == "" {
			return nil
		}
		_, err := c.Exec(ctx, "SET ROLE "+role)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func perform(t *testing.T, pool *pgxpool.Pool, statements string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), statements); err != nil {
		t.Fatalf("%v\n%s", err, statements)
	}
}

var (
	errDeclined = errors.New("declined")
	decision    = inbox.Decision{By: "test", Reason: "test"}
	fetched     = outbox.Decision{By: "test", Reason: "test"}
	someone     = [16]byte{15: 1}
)

// jobs are the tasks that each role must be able to do.
var jobs = []struct {
	role, name string
	work       func(context.Context, staff) error
}{
	{"app", "work outside", func(ctx context.Context, s staff) error {
		op := &once.Operation[int]{Name: "outside", OnUnknown: once.Resend}
		for _, try := range []struct {
			id             string
			returned, want error
		}{
			{"1", nil, nil},
			{"2", once.ErrRejected, once.ErrRejected},
			{"3", once.NotDone(errDeclined), errDeclined},
			{"4", errDeclined, once.ErrOutcomeUnknown},
			{"4", nil, nil}, // takes over from the one before it
		} {
			work := op.For(try.id)
			_, err := once.Do(ctx, s.Store, work, func(context.Context, once.Key) (int, error) {
				return 1, errors.Join(try.returned, s.extend(ctx, work.Key()))
			})
			if !errors.Is(err, try.want) {
				return fmt.Errorf("work %s, which returned %v: %w", try.id, try.returned, err)
			}
		}
		return nil
	}},
	{"app", "work in a transaction", func(ctx context.Context, s staff) error {
		op, events := &once.Operation[int]{Name: "inside"}, outbox.New(s.Store, nil)
		_, err := once.DoTx(ctx, s.Store, op.For("1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
			return 1, events.Put(ctx, tx, &broker.Message{Topic: "t"})
		})
		if err != nil {
			return err
		}
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		_, failed := once.InTx(ctx, s.Store, tx, op.For("2"), func(context.Context) (int, error) { return 1, errDeclined })
		_, err = once.InTx(ctx, s.Store, tx, op.For("3"), func(ctx context.Context) (int, error) {
			return 1, events.PutAfter(ctx, tx, time.Hour, &broker.Message{Topic: "t"})
		})
		if err = errors.Join(err, tx.Commit(ctx)); !errors.Is(failed, errDeclined) {
			err = errors.Join(err, failed)
		}
		return err
	}},
	{"app", "work through sqlstore", func(ctx context.Context, s staff) error {
		db := stdlib.OpenDBFromPool(s.pool)
		defer db.Close()
		through := sqlstore.New(db, sqlstore.PostgreSQL, nil)
		op, events := &once.Operation[int]{Name: "through", OnUnknown: once.Park}, outbox.New(through, nil)
		_, err := once.Do(ctx, through, op.For("1"), func(context.Context, once.Key) (int, error) { return 1, nil })
		if err != nil {
			return err
		}
		_, err = once.DoTx(ctx, through, op.For("2"), func(ctx context.Context, tx *sql.Tx) (int, error) {
			return 1, events.Put(ctx, tx, &broker.Message{Topic: "t"})
		})
		return err
	}},
	{"app", "unknown work", func(ctx context.Context, s staff) error {
		op := &once.Operation[int]{Name: "asked", OnUnknown: once.Park}
		if err := leaveUnknown(ctx, s.own, op.For("1").Key()); err != nil {
			return err
		}
		page, err := s.List(ctx, once.RecordQuery{Operation: "asked", Status: []once.Status{once.Unknown}})
		if err != nil || len(page.Records) != 1 {
			return fmt.Errorf("%d records: %w", len(page.Records), err)
		}
		_, err = op.Ask(ctx, s.Store, page.Records[0])
		return err
	}},
	{"app", "consuming", func(ctx context.Context, s staff) error {
		_, err := s.Register(ctx, store.Consumer{Name: "billing", Source: "queue", Keys: "billing"})
		_, again := s.Register(ctx, store.Consumer{Name: "billing", Source: "queue", Keys: "billing"})
		at, opened := s.OpenPosition(ctx, "billing", "p/0")
		to := at
		to.Log, to.Offset = "log", 7
		moved := s.TransactAt(ctx, at, to, func(pgx.Tx) error { return nil })
		m := message("m1")
		put := s.Shelve(ctx, []store.Shelved{m})
		found, read := s.Shelved(ctx, store.ShelfQuery{Ready: true})
		if err := errors.Join(err, again, opened, moved, put, read); err != nil || len(found) == 0 {
			return fmt.Errorf("%d messages: %w", len(found), err)
		}
		m = found[0]
		m.Attempts++
		if err := s.Change(ctx, m); err != nil {
			return err
		}
		m.Version++
		m.State, m.History = store.Handled, ""
		_, forgot := s.ForgetShelved(ctx, time.Hour, 10)
		return errors.Join(s.Change(ctx, m), forgot)
	}},
	{"relay", "publishing", func(ctx context.Context, s staff) error {
		if err := put(ctx, s.own, 4); err != nil {
			return err
		}
		_, leased := s.LeaseLanes(ctx, someone, time.Minute, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
		ms, err := s.Outgoing(ctx, store.OutgoingQuery{})
		if err = errors.Join(leased, err); err != nil || len(ms) < 4 {
			return fmt.Errorf("%d messages: %w", len(ms), err)
		}
		for i, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
			_, ended := s.Sent(ctx, someone, ms[i:i+1], then)
			err = errors.Join(err, ended)
		}
		_, moved := s.MoveOutgoing(ctx, someone, ms[3:4], store.Held)
		_, _, woken := s.WakeDelayed(ctx, someone, store.Pending, 10)
		_, forgot := s.ForgetOutgoing(ctx, 0, 10)
		_, depth := s.OutboxDepth(ctx, 10)
		return errors.Join(err, moved, woken, forgot, depth, s.ReleaseLanes(ctx, someone, nil))
	}},
	{"janitor", "forgetting", func(ctx context.Context, s staff) error {
		op := &once.Operation[int]{Name: "short", Policy: once.Policy{KeepOutcome: time.Microsecond, KeepKey: time.Microsecond}}
		long := &once.Operation[int]{Name: "long", Policy: once.Policy{KeepOutcome: time.Microsecond}}
		for _, work := range []once.Work[int]{op.For("1"), long.For("1")} {
			if _, err := once.DoTx(ctx, s.own, work, func(context.Context, pgx.Tx) (int, error) { return 1, nil }); err != nil {
				return err
			}
		}
		m := message("old")
		m.State = store.Discarded
		if err := errors.Join(s.own.Shelve(ctx, []store.Shelved{m}), keep(ctx, s.own)); err != nil {
			return err
		}
		stats := new(janitor.Stats)
		err := (&janitor.Janitor{Store: s.Store, KeepShelved: time.Microsecond, KeepPublished: time.Microsecond, Stats: stats}).Sweep(ctx)
		if err == nil && (stats.Keys.Load() < 2 || stats.Shelved.Load() < 1 || stats.Published.Load() < 1) {
			err = fmt.Errorf("%d keys, %d of the shelf and %d published ones were forgotten", stats.Keys.Load(), stats.Shelved.Load(), stats.Published.Load())
		}
		return err
	}},
	{"operator", "deciding about keys", func(ctx context.Context, s staff) error {
		for i, decide := range []func(once.Record) error{
			func(rec once.Record) error { return once.MarkDone(ctx, s.Store, rec, once.Outcome{}, "test") },
			func(rec once.Record) error { return once.MarkNotDone(ctx, s.Store, rec, "test") },
		} {
			k := once.Key{Operation: "decided", ID: fmt.Sprint(i)}
			err := leaveUnknown(ctx, s.own, k)
			rec, read := s.Get(ctx, k)
			if err = errors.Join(err, read, decide(rec)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"operator", "deciding about parked messages", func(ctx context.Context, s staff) error {
		m, n := message("p1"), message("p2")
		m.State, n.State = store.Parked, store.Parked
		if err := s.own.Shelve(ctx, []store.Shelved{m, n}); err != nil {
			return err
		}
		admin := inbox.Admin{Store: s.Store}
		replayed, err := admin.Replay(ctx, store.ShelfQuery{Consumer: "billing", IDs: []string{"p1"}}, decision)
		discarded, again := admin.Discard(ctx, store.ShelfQuery{Consumer: "billing", IDs: []string{"p2"}}, decision)
		if err = errors.Join(err, again); err == nil && (replayed.Changed != 1 || discarded.Changed != 1) {
			err = fmt.Errorf("replayed %+v, discarded %+v", replayed, discarded)
		}
		return errors.Join(err, admin.SetPosition(ctx, store.Position{Consumer: "billing", Partition: "p/0", Log: "log", Offset: 1}))
	}},
	{"operator", "renaming and retiring consumers", func(ctx context.Context, s staff) error {
		_, err := s.own.Register(ctx, store.Consumer{Name: "old", Source: "a queue"})
		placed := s.own.SetPosition(ctx, store.Position{Consumer: "old", Partition: "p/0", Log: "log", Offset: 1})
		if err := errors.Join(err, placed); err != nil {
			return err
		}
		if _, err := (inbox.Admin{Store: s.Store}).Rename(ctx, "old", "new", decision); err != nil {
			return err
		}
		return s.RetireConsumer(ctx, store.Retirement{Name: "new", As: store.RetiredSource(time.Now(), "test", "test")})
	}},
	{"operator", "deciding about stuck messages", func(ctx context.Context, s staff) error {
		if err := put(ctx, s.own, 2); err != nil {
			return err
		}
		admin := outbox.Admin{Store: s.Store}
		_, err := admin.Park(ctx, store.OutgoingQuery{}, fetched)
		one, replay := admin.Replay(ctx, store.OutgoingQuery{Limit: 1}, fetched)
		rest, discard := admin.Discard(ctx, store.OutgoingQuery{}, fetched)
		if err = errors.Join(err, replay, discard); err == nil && (one.Changed != 1 || rest.Changed < 1) {
			err = fmt.Errorf("replayed %+v, discarded %+v", one, rest)
		}
		return err
	}},
	{"operator", "looking", look},
	{"reader", "looking", look},
}

// extend extends the lease of running work, as the heartbeat does.
func (s staff) extend(ctx context.Context, k once.Key) error {
	rec, err := s.Get(ctx, k)
	if err != nil {
		return err
	}
	return s.Extend(ctx, once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}, time.Minute)
}

// leaveUnknown leaves an unknown record, as a crashed owner does.
func leaveUnknown(ctx context.Context, s *pgstore.Store, k once.Key) error {
	fence := once.Fence{Key: k, Owner: someone}
	rec, err := s.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: time.Minute})
	fence.Attempt = rec.Attempt
	return errors.Join(err, s.Settle(ctx, once.Settlement{Fence: fence, Status: once.Unknown, Reason: "test"}))
}

func message(id string) store.Shelved {
	return store.Shelved{Consumer: "billing", Key: id, State: store.Waiting, Message: broker.Message{ID: id, Topic: "t"}}
}

// put puts messages that are due now.
func put(ctx context.Context, s *pgstore.Store, n int) error {
	op, events := &once.Operation[int]{Name: "put"}, outbox.New(s, nil)
	_, err := once.DoTx(ctx, s, op.For(fmt.Sprint(time.Now().UnixNano())), func(ctx context.Context, tx pgx.Tx) (int, error) {
		for range n {
			if err := events.Put(ctx, tx, &broker.Message{Topic: "t"}); err != nil {
				return 0, err
			}
		}
		return n, nil
	})
	return err
}

// keep leaves a published message that is kept.
func keep(ctx context.Context, s *pgstore.Store) error {
	if err := put(ctx, s, 1); err != nil {
		return err
	}
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{Limit: 1})
	if err == nil {
		_, err = s.Sent(ctx, [16]byte{}, ms, store.Keep)
	}
	return err
}

// look does what the verbs that only read do.
func look(ctx context.Context, s staff) error {
	_, err := s.List(ctx, once.RecordQuery{})
	_, got := s.Get(ctx, once.Key{Operation: "x", ID: "1"})
	_, shelf := inbox.Admin{Store: s.Store}.List(ctx, store.ShelfQuery{})
	_, places := s.Positions(ctx, "billing")
	_, known := s.Consumers(ctx)
	_, out := outbox.Admin{Store: s.Store}.List(ctx, store.OutgoingQuery{})
	_, depth := s.OutboxDepth(ctx, 10)
	_, lanes := s.pool.Exec(ctx, "SELECT FROM once_lane, once_relay")
	return errors.Join(err, got, shelf, places, known, out, depth, lanes)
}
