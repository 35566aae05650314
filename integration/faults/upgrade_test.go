package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/internal/checksum"
)

var upgraded = &once.Operation[string]{Name: "upgraded", OnUnknown: once.Resend}

// far is a time in the year 2096, in microseconds since 1970.
const far = 4_000_000_000_000_000

// doneBefore inserts the row of a unit that is done, as each build since
// version 1 writes it. All builds agree on these columns and their meaning, so
// this text never changes.
func doneBefore(e engine.Engine, id string) string {
	k := upgraded.For(id).Key()
	body := []byte(`"answer"`)
	sum := checksum.Of(k.UUID(), "application/json", body, false, false)
	return fmt.Sprintf(`INSERT INTO once_record (%s, scope, operation, id, status, attempt, owner, outcome,
		content_type, sum, outcome_until, key_until, due, created, updated)
		VALUES (%s, '', 'upgraded', '%s', 4, 1, %s, %s, 'application/json', %d, %d, %d, %d, 1, 1)`,
		keyColumn(e), uuidOf(e, k.UUID()), id, uuidOf(e, [16]byte{1}), bytesOf(e, body), sum, int64(far), int64(far), int64(far))
}

// runningBefore inserts the claim of a build of version 1, with a lease that
// has lapsed or not.
func runningBefore(e engine.Engine, id string, until int64) string {
	k := upgraded.For(id).Key()
	return fmt.Sprintf(`INSERT INTO once_record (%s, scope, operation, id, status, attempt, owner, lease_until, created, updated)
		VALUES (%s, '', 'upgraded', '%s', 1, 3, %s, %d, 1, 1)`,
		keyColumn(e), uuidOf(e, k.UUID()), id, uuidOf(e, [16]byte{1}), until)
}

// at returns a database with the tables of a version, as a build of that
// version has left it.
func at(t *testing.T, e engine.Engine, version int) (*engine.Database, string) {
	t.Helper()
	dsn := e.Fresh(t)
	d := e.Connect(t, dsn)
	for _, m := range names(t, e).Migrations()[:version] {
		d.MustExec(t, append(m.SQL, m.Row)...)
	}
	d.MustExec(t, effectTable, doneBefore(e, "old"), runningBefore(e, "held", far), runningBefore(e, "lapsed", 1))
	return d, dsn
}

// TestUpgradeUnderLoad migrates the tables of each older version to the latest
// one, while builds of that version keep writing, and programs of this build
// have been started too early. None of them is disturbed, and no answer is
// lost.
func TestUpgradeUnderLoad(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		for version := 1; version < names(t, e).Latest(); version++ {
			t.Run(fmt.Sprint("from version ", version), func(t *testing.T) {
				d, dsn := at(t, e, version)
				for how, call := range calls(d, upgraded, "old", never(t, "before the upgrade")) {
					if _, err := call(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "too old") {
						t.Errorf("on version %d, %s returned %v, want ErrInvalid: too old", version, how, err)
					}
				}
				upgradeUnderLoad(t, e, d, dsn)
			})
		}
	})
}

func upgradeUnderLoad(t *testing.T, e engine.Engine, d *engine.Database, dsn string) {
	const early = 4
	before := e.Connect(t, dsn)
	var written atomic.Int64
	var writing, claiming sync.WaitGroup
	end := make(chan struct{})
	writing.Go(func() { // the old build
		for open := true; open; written.Add(1) {
			if err := before.Exec(t.Context(), doneBefore(e, fmt.Sprint("old ", written.Load()))); err != nil {
				t.Errorf("the old build was disturbed: %v", err)
				return
			}
			select {
			case <-end:
				open = false
			default:
			}
		}
	})
	for i := range early {
		program := e.Connect(t, dsn)
		claiming.Go(func() { untilUpgraded(t, program, fmt.Sprint("early ", i)) })
	}
	must(t, waitFor("the old build writes", 10*time.Second, func() bool { return written.Load() > 5 }))
	must(t, e.Connect(t, dsn).Store.Migrate(t.Context()))
	claiming.Wait()
	count := written.Load()
	must(t, waitFor("the old build writes on", 10*time.Second, func() bool { return written.Load() > count+5 }))
	close(end)
	writing.Wait()

	for i := range early {
		wantEffects(t, d, fmt.Sprint("early ", i), 1)
	}
	replays(t, d, "old")
	for i := range written.Load() {
		replays(t, d, fmt.Sprint("old ", i))
	}
	rec, err := d.Store.Get(t.Context(), upgraded.For("held").Key())
	if err != nil || rec.Status != once.Running || rec.Attempt != 3 {
		t.Errorf("the claim that the old build holds is %+v, %v", rec, err)
	}
	var report once.Report
	_, err = once.DoTx(t.Context(), d.Store, upgraded.For("lapsed").Report(&report), func(ctx context.Context, tx engine.Tx) (string, error) {
		return "answer", effect(ctx, tx, "lapsed")
	})
	if err != nil || report.Attempt != 4 {
		t.Errorf("taking over what the old build left: %v, attempt %d, want 4", err, report.Attempt)
	}
	if n, err := d.Store.Forget(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("Forget returned %d, %v; nothing is due", n, err)
	}
}

func replays(t *testing.T, d *engine.Database, id string) {
	t.Helper()
	for how, call := range calls(d, upgraded, id, never(t, id)) {
		if answer, err := call(t.Context()); answer != "answer" || err != nil {
			t.Errorf("%s of %q returned %q, %v", how, id, answer, err)
		}
	}
	wantEffects(t, d, ranIn(id), 0)
}

// untilUpgraded is a program of this build that is started before the tables
// are migrated, or just then.
func untilUpgraded(t *testing.T, d *engine.Database, id string) {
	err := waitFor("the upgrade", 30*time.Second, func() bool {
		_, err := once.DoTx(t.Context(), d.Store, upgraded.For(id), func(ctx context.Context, tx engine.Tx) (string, error) {
			return "answer", effect(ctx, tx, id)
		})
		if err != nil && !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", id, err)
		}
		return err == nil
	})
	if err != nil {
		t.Errorf("%s: %v", id, err)
	}
}

// TestNewerTables runs this build on tables of a newer version that allow it: a
// program that was running before, and one that is started after.
func TestNewerTables(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, dsn := with(t, e)
		n := names(t, e)
		life(t, d, "before")
		d.MustExec(t, "ALTER TABLE once_record ADD COLUMN novelty varchar(20) DEFAULT 'new'",
			"CREATE INDEX once_record_novelty ON once_record (novelty)",
			fmt.Sprintf("INSERT INTO once_schema (version, compatible, name, applied) VALUES (%d, %d, 'novelty', 0)", n.Latest()+1, n.Latest()))
		life(t, d, "after")
		started := e.Connect(t, dsn)
		must(t, started.Store.Migrate(t.Context()))
		life(t, started, "started")
		for _, id := range []string{"before", "after"} {
			for how, call := range calls(started, upgraded, id, never(t, id)) {
				if answer, err := call(t.Context()); answer != "answer" || err != nil {
					t.Errorf("%s of %q returned %q, %v", how, id, answer, err)
				}
			}
		}
		if at := d.MustNumber(t, "SELECT MAX(version) FROM once_schema"); at != int64(n.Latest()+1) {
			t.Errorf("the tables say version %d", at)
		}
	})
}

// life calls each method of a store.
func life(t *testing.T, d *engine.Database, id string) {
	t.Helper()
	_, err := once.DoTx(t.Context(), d.Store, upgraded.For(id), func(ctx context.Context, tx engine.Tx) (string, error) {
		return "answer", effect(ctx, tx, id)
	})
	must(t, err)
	wantEffects(t, d, id, 1)
	k := upgraded.For(id + " by hand").Key()
	rec, err := d.Store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k, Owner: [16]byte{1}}, Lease: time.Minute})
	must(t, err)
	fence := once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}
	must(t, d.Store.Extend(t.Context(), fence, time.Minute))
	must(t, d.Store.Settle(t.Context(), once.Settlement{Fence: fence, Status: once.Absent, KeepKey: time.Hour}))
	listed, err := d.Store.List(t.Context(), once.RecordQuery{Operation: "upgraded", Status: []once.Status{once.Done, once.Absent}})
	if err != nil || len(listed.Records) < 2 {
		t.Errorf("List returned %d records, %v", len(listed.Records), err)
	}
	_, err = d.Store.Forget(t.Context(), 10)
	must(t, err)
}
