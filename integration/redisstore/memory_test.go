//go:build linux

package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/redisstore"
)

// Work that cannot be recorded must not begin, and work that has begun must be
// recorded.
func TestAFullServerRefusesClaimsAndRecordsWork(t *testing.T) {
	c, ctx := dial(t, start(t)), proof.Soon(t)
	store := redisstore.New(c, nil)
	claim := func(id string) (once.Fence, error) {
		fence := once.Fence{Key: once.Key{Operation: "pay", ID: id}, Owner: [16]byte{1}}
		rec, err := store.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: time.Hour})
		fence.Attempt = rec.Attempt
		return fence, err
	}
	begun := make(map[once.Status]once.Fence)
	for _, status := range []once.Status{once.Absent, once.Unknown, once.Parked, once.Done} {
		fence, err := claim(status.String())
		proof.Must(t, err)
		begun[status] = fence
	}
	proof.Must(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	if _, err := claim("new"); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Errorf("Claim on a full server returned %v", err)
	}
	for status, fence := range begun {
		if err := store.Extend(ctx, fence, time.Hour); err != nil {
			t.Errorf("Extend on a full server: %v", err)
		}
		set := once.Settlement{Fence: fence, Status: status, KeepOutcome: time.Hour, KeepKey: time.Hour}
		if err := store.Settle(ctx, set); err != nil {
			t.Errorf("Settle as %v on a full server: %v", status, err)
		}
	}
	if rec, err := store.Get(ctx, once.Key{Operation: "pay", ID: "new"}); err != nil || rec.Attempt != 0 {
		t.Errorf("Get returned %v, %v", rec, err)
	}
	if err := store.Reopen(ctx, begun[once.Done], time.Hour, ""); err != nil {
		t.Errorf("Reopen on a full server: %v", err)
	}
}
