//go:build go1.25

package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// Leases and retention end exactly when their time has passed.
func TestTimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := memstore.New(nil), request("1", "me")
		status := func(when string, want once.Status) once.Record {
			t.Helper()
			rec, err := s.Get(ctx, r.Key)
			if err != nil || rec.Status != want {
				t.Errorf("%s the record is %v (%v), want %v", when, rec.Status, err, want)
			}
			return rec
		}
		rec, err := s.Claim(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(r.Lease - 1)
		if rec := status("just before the lease ends", once.Running); rec.LeaseLeft != 1 || rec.Age != r.Lease-1 {
			t.Errorf("LeaseLeft %v, Age %v", rec.LeaseLeft, rec.Age)
		}
		time.Sleep(time.Nanosecond)
		if rec := status("when the lease ends", once.Unknown); rec.LeaseLeft >= 0 {
			t.Errorf("LeaseLeft %v", rec.LeaseLeft)
		}
		time.Sleep(time.Minute)
		if rec := status("later", once.Unknown); rec.LeaseLeft != -time.Minute {
			t.Errorf("LeaseLeft %v", rec.LeaseLeft)
		}

		set := done(rec)[0]
		set.Status = once.Unknown
		if err := s.Settle(ctx, set); err != nil {
			t.Fatal(err)
		}
		if rec := status("when it was settled so", once.Unknown); rec.LeaseLeft >= 0 {
			t.Errorf("LeaseLeft %v", rec.LeaseLeft)
		}

		set.Status = once.Done
		set.KeepOutcome, set.KeepKey = time.Hour, 2*time.Hour
		if err := s.Settle(ctx, set); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - 1)
		status("just before KeepOutcome has passed", once.Done)
		time.Sleep(time.Nanosecond)
		status("when KeepOutcome has passed", once.Expired)
		time.Sleep(time.Hour - 1)
		status("just before KeepKey has passed", once.Expired)
		time.Sleep(time.Nanosecond)
		if rec := status("when KeepKey has passed", once.Absent); rec.Attempt != 0 {
			t.Errorf("attempt %d", rec.Attempt)
		}
	})
}
