package seedbugs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/internal/testenv"
)

func claimOf(id string) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "pay", ID: id}, Owner: [16]byte{1}}, Lease: time.Hour}
}

func onPostgres(t *testing.T, test func(*testing.T, engine.Engine)) {
	engine.OnEach(t, test, engine.Postgres, engine.PGStore)
}

// Claim tries an insert that gives way first, so a race that comes after the snapshot of the statement that takes over is
// forced in ClaimTx, which does not.
func TestAClaimInATransactionOvertakenAfterItsSnapshot(t *testing.T) {
	onPostgres(t, func(t *testing.T, e engine.Engine) {
		d, dsn := e.Migrated(t)
		lock := rand.Int32()
		// It holds an insert between its snapshot and the unique index until the lock is free.
		d.MustExec(t, fmt.Sprintf(`CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN IF NEW.attempt = 1 THEN PERFORM pg_advisory_xact_lock(%d); END IF; RETURN NEW; END $$`, lock),
			`CREATE TRIGGER stall BEFORE INSERT ON once_record FOR EACH ROW EXECUTE FUNCTION stall()`)
		other := e.Connect(t, dsn)
		holder := begin(t, other)
		must(t, holder.Exec(t.Context(), fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, lock)))

		r, tx := claimOf("1"), begin(t, d)
		type reply struct {
			recs []once.Record
			err  error
		}
		replies := make(chan reply, 1)
		go func() {
			recs, err := d.Store.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
			replies <- reply{recs, err}
		}()
		testenv.Await(t, "ClaimTx waits for the lock", func() bool {
			return other.MustNumber(t, fmt.Sprintf(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
				AND classid = 0 AND objid = %d AND NOT granted`, lock)) == 1
		})
		other.MustExec(t, fmt.Sprintf(`INSERT INTO once_record (key, scope, operation, id, status, attempt, owner, lease_until, created, updated)
			VALUES ('%s', '', 'pay', '1', 1, 5, '%s', 9e15, 1, 1)`, r.Key, once.Key{Operation: "winner", ID: "1"}))
		must(t, holder.Rollback(t.Context()))
		got := <-replies
		if got.err != nil || len(got.recs) != 1 || got.recs[0].Attempt != 5 || got.recs[0].Owner == r.Owner {
			t.Errorf("ClaimTx returned %+v, %v; want the record of the winner", got.recs, got.err)
		}
	})
}

// A claim foresees when its row is due. If the work takes longer, Forget comes by while it is running.
func TestForgetLeavesARunningRowThatIsDue(t *testing.T) {
	onPostgres(t, func(t *testing.T, e engine.Engine) {
		d, _ := e.Migrated(t)
		r := claimOf("1")
		r.Expected = &once.Settlement{Status: once.Done, KeepOutcome: time.Microsecond, KeepKey: time.Microsecond}
		rec, err := d.Store.Claim(t.Context(), r)
		must(t, err)
		if d.MustNumber(t, `SELECT count(*) FROM once_record WHERE due IS NOT NULL`) != 1 {
			t.Fatal("the claim has foreseen nothing: this test does not do what it says")
		}
		for range 2 {
			if _, err := d.Store.Forget(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
		}
		now, err := d.Store.Get(t.Context(), r.Key)
		if err != nil || now.Status != once.Running || now.Owner != r.Owner || now.Attempt != rec.Attempt {
			t.Errorf("Forget beside a key that is running: %+v, %v", now, err)
		}
	})
}

// Keys that go and outcomes that go are dropped by two statements in store/sqlstore: together they have one limit.
func TestForgetCountsBothStagesAgainstItsLimit(t *testing.T) {
	onPostgres(t, func(t *testing.T, e engine.Engine) {
		d, _ := e.Migrated(t)
		for i, keepKey := range []time.Duration{0, 0, time.Hour, time.Hour, time.Hour, time.Hour} {
			rec, err := d.Store.Claim(t.Context(), claimOf(fmt.Sprint(i)))
			must(t, err)
			must(t, d.Store.Settle(t.Context(), once.Settlement{Fence: once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt},
				Status: once.Done, KeepKey: keepKey}))
		}
		for _, want := range []int{3, 3, 0} {
			if n, err := d.Store.Forget(t.Context(), 3); err != nil || n != want {
				t.Errorf("Forget changed %d records, %v; want %d", n, err, want)
			}
		}
	})
}

func begin(t *testing.T, d *engine.Database) engine.Tx {
	t.Helper()
	tx, err := d.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // fails where it has ended
	return tx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
