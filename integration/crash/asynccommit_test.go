//go:build linux

package crash

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/testenv"
)

// A server that crashes may forget a claim with AsyncCommit, but never the end
// of its work, nor a claim without AsyncCommit.
func TestOnlyTheClaimIsForgotten(t *testing.T) {
	testenv.Postgres(t) // skips if there are no servers
	instance, err := server.StartPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := instance.Stop(); err != nil {
			t.Error(err)
		}
	})
	w, err := place{Engine: PGStore, DSN: instance.DSN()}.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	if err := w.setUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	const most = 10 // the server may write its log in between, now and then
	forgotten := 0
	for range most {
		async, ended := claimNow(t, w, true), claimNow(t, w, false)
		set := once.Settlement{Fence: ended, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}
		begun := claimNow(t, w, true)
		if err := w.Settle(t.Context(), set); err != nil { // which also writes the earlier claims to disk
			t.Fatal(err)
		}
		after := claimNow(t, w, true)
		die(t, instance)
		for fence, want := range map[once.Fence]once.Status{async: once.Running, begun: once.Running, ended: once.Done} {
			if rec := getNow(t, w, fence.Key); rec.Status != want {
				t.Errorf("what was committed is %v, want %v", rec.Status, want)
			}
		}
		if getNow(t, w, after.Key).Status == once.Absent {
			forgotten++
		}
	}
	if forgotten == 0 {
		t.Errorf("of %d claims with AsyncCommit none was forgotten: they wait for the disk", most)
	}
}

func die(t *testing.T, instance *server.Instance) {
	t.Helper()
	if err := instance.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := instance.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func claimNow(t *testing.T, w world, async bool) once.Fence {
	t.Helper()
	fence := once.Fence{Key: once.Key{Operation: "async", ID: rand.Text()}, Owner: token()}
	rec, err := w.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour, ClaimHints: once.ClaimHints{AsyncCommit: async}})
	if err != nil || rec.Owner != fence.Owner {
		t.Fatalf("%+v, %v", rec, err)
	}
	fence.Attempt = rec.Attempt
	return fence
}

// getNow repeats Get until it succeeds: connections to the crashed server fail
// first.
func getNow(t *testing.T, w world, k once.Key) once.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proof.Patience)
	defer cancel()
	for {
		rec, err := w.Get(ctx, k)
		if err == nil {
			return rec
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
