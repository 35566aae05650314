package doctor_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// fill makes keys. The rest of each is from its status on, with the digest of its key as its argument.
func fill(t *testing.T, at *target.Target, n int, rest string) {
	t.Helper()
	var rows []string
	for i := range n {
		id := fmt.Sprint("key", i)
		digest := once.Key{Operation: "pay", ID: id}.UUID()
		rows = append(rows, fmt.Sprintf("(x'%x', '', 'pay', '%s', 1, "+rest+")", digest[:], id))
	}
	if _, err := at.Tables.DB.ExecContext(t.Context(), "INSERT INTO "+at.Tables.Names.Table()+` ("key", scope, operation, id, attempt,
		status, owner, lease_until, created, updated) VALUES `+strings.Join(rows, ", ")); err != nil {
		t.Fatal(err)
	}
}

// fresh makes a database with the tables.
func fresh(t *testing.T) *target.Target {
	t.Helper()
	at, err := target.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "once.db"), &target.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Close() })
	if err := at.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return at
}

// Old unknown keys are found among any number of young ones. They are counted up
// to a limit, which the finding states.
func TestOldUnknownsAreAllFound(t *testing.T) {
	finding := func(at *target.Target) string {
		t.Helper()
		report, err := doctor.Examine(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Findings {
			if strings.HasPrefix(f.Name, "unknown-") {
				return f.Name + ": " + f.What
			}
		}
		return ""
	}
	const now = "(CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
	young, old := "2, x'%[1]x', "+now+"), 1, "+now+")", "2, x'%[1]x', "+now+" - 7200000000), 1, "+now+" - 7200000000)"
	at := fresh(t)
	fill(t, at, 2500, young)
	if got := finding(at); !strings.HasPrefix(got, "unknown-young: 2500 keys have been unknown for less than 60 m, the oldest for ") ||
		!strings.HasSuffix(got, ": pay (2500). The lease of 2500 lapsed, and 0 were reported by their work.") {
		t.Errorf("found %q", got)
	}
	h := once.Key{Operation: "ship", ID: "old"}
	for h.UUID()[0] < 0xff { // at the end of all lists
		h.ID += "."
	}
	if _, err := at.Tables.DB.ExecContext(t.Context(), fmt.Sprintf("UPDATE %s SET updated = 1, lease_until = lease_until - 7200000000, "+
		"operation = 'ship', id = '%s', \"key\" = x'%x' WHERE id = 'key7'", at.Tables.Names.Table(), h.ID, h.UUID())); err != nil {
		t.Fatal(err)
	}
	if got := finding(at); got != "unknown-old: 1 key has been unknown for more than 60 m, the oldest for 2 h: ship (1)." {
		t.Errorf("found %q", got)
	}
	at = fresh(t)
	fill(t, at, 5_200, old)
	if got := finding(at); got != "unknown-old: At least 5000 keys have been unknown for more than 60 m, the oldest for 2 h: pay (5000)." {
		t.Errorf("found %q", got)
	}
	// A lease that ended lately, of a record that was not changed for long.
	if _, err := at.Tables.DB.ExecContext(t.Context(), "UPDATE "+at.Tables.Names.Table()+" SET lease_until = "+now+")"); err != nil {
		t.Fatal(err)
	}
	if got := finding(at); got != "unknown-many: There are many unknown keys. None of the 5000 that were checked is old." {
		t.Errorf("found %q", got)
	}
}

// A parked key is found after any number of running ones, whose pages are empty.
func TestParkedBehindManyThatRun(t *testing.T) {
	ctx, at := t.Context(), fresh(t)
	fence := once.Fence{Key: once.Key{Operation: "pay", ID: "parked"}, Owner: [16]byte{1}, Attempt: 1}
	for fence.Key.UUID()[0] < 0xff { // at the end of all lists
		fence.Key.ID += "."
	}
	claim := once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: fence.Owner}, Lease: time.Hour}
	if _, err := at.Store.Claim(ctx, claim); err != nil {
		t.Fatal(err)
	}
	if err := at.Store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Parked, Reason: "odd"}); err != nil {
		t.Fatal(err)
	}
	fill(t, at, 2500, "1, x'%[1]x', 9000000000000000, 1, 1")
	report, err := doctor.Examine(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool {
		return f.Name == "parked-keys" && f.What == "1 key is parked: pay (1)."
	}) {
		t.Errorf("what is parked is not seen: %+v", report.Findings)
	}
}

// A record that cannot be read is reported once, and hides no other.
func TestADamagedRecordIsReported(t *testing.T) {
	ctx, at := t.Context(), fresh(t)
	for _, id := range []string{"good", "bad", "also good"} {
		fence := once.Fence{Key: once.Key{Operation: "pay", ID: id}, Owner: [16]byte{1}, Attempt: 1}
		claim := once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: fence.Owner}, Lease: time.Hour}
		if _, err := at.Store.Claim(ctx, claim); err != nil {
			t.Fatal(err)
		}
		if err := at.Store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Parked, Reason: "odd"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := at.Tables.DB.ExecContext(ctx, "UPDATE "+at.Tables.Names.Table()+" SET id = 'worse' WHERE id = 'bad'"); err != nil {
		t.Fatal(err)
	}
	report, err := doctor.Examine(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	for name, what := range map[string]string{"damaged-records": "1 record cannot be read. The first: ", "parked-keys": "2 keys are parked: pay (2)."} {
		if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool {
			return f.Name == name && strings.HasPrefix(f.What, what)
		}) {
			t.Errorf("%s is missing: %+v", name, report.Findings)
		}
	}
}
