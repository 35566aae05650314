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

// A key that is parked is found behind any number of running ones, whose pages are empty.
func TestParkedBehindManyThatRun(t *testing.T) {
	ctx := t.Context()
	at, err := target.Open(ctx, "sqlite:"+filepath.Join(t.TempDir(), "once.db"), &target.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if err := at.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	h := once.Hold{Key: once.Key{Operation: "pay", ID: "parked"}, Owner: [16]byte{1}, Attempt: 1}
	for h.Key.UUID()[0] < 0xff { // at the end of all lists
		h.Key.ID += "."
	}
	claim := once.Request{Hold: once.Hold{Key: h.Key, Owner: h.Owner}, Lease: time.Hour}
	if _, err := at.Store.Claim(ctx, claim); err != nil {
		t.Fatal(err)
	}
	if err := at.Store.Settle(ctx, once.Settlement{Hold: h, Status: once.Parked, Reason: "odd"}); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for i := range 2500 {
		id := fmt.Sprint("running", i)
		rows = append(rows, fmt.Sprintf("(x'%x', '', 'pay', '%s', 1, 1, x'%[1]x', 9000000000000000, 1, 1)",
			once.Key{Operation: "pay", ID: id}.UUID(), id))
	}
	if _, err := at.DB.ExecContext(ctx, "INSERT INTO "+at.Names.Table()+` ("key", scope, operation, id, status,
		attempt, owner, lease_until, created, updated) VALUES `+strings.Join(rows, ", ")); err != nil {
		t.Fatal(err)
	}
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
