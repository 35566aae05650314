package once_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/store/memstore"
)

// A holder that is gone has left no reason, and one that does not know what it
// did has. People look at the first for a crash, and at the second for an answer.
func TestALapsedLeaseIsToldFromAReportedOutcome(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		ctx := context.Background()
		op := &once.Operation[int]{Name: "charge", OnUnknown: once.Resend, Policy: once.Policy{Lease: time.Second}}
		for _, sealed := range []bool{false, true} {
			o := new(memstore.Options)
			if sealed {
				o.Sealing = once.Sealing{Ring: newRing(t, "a"), Only: once.SealAll}
			}
			s := memstore.New(o)
			failed := func(id string, err error) once.Record {
				t.Helper()
				_, _ = once.Do(ctx, s, op.For(id), func(context.Context, once.Key) (int, error) { return 0, err })
				return get(t, s, op.For(id).Key())
			}
			for id, err := range map[string]error{"said no": errors.New("declined by the provider"), "said nothing": errors.New("")} {
				rec := failed(id, err)
				if rec.Status != once.Unknown || rec.Lapsed() || rec.Why() == "" || s.Options().Sealing.OpenReason(rec) == "" {
					t.Errorf("an attempt that %s: %+v is lapsed", id, rec)
				}
			}
			for _, before := range []string{"", "said no"} { // an earlier attempt has reported, and the next one crashes
				id := "crashed after " + before
				var take int64
				if before != "" {
					take = failed(id, errors.New("timeout")).Attempt
				}
				claim := once.ClaimRequest{Fence: once.Fence{Key: op.For(id).Key(), Owner: [16]byte{9}, Attempt: take}, Lease: time.Second}
				if rec, err := s.Claim(ctx, claim); err != nil || rec.Lapsed() {
					t.Errorf("a running claim has lapsed: %+v %v", rec, err)
				}
				time.Sleep(2 * time.Second)
				rec := get(t, s, op.For(id).Key())
				if rec.Status != once.Unknown || !rec.Lapsed() || rec.Why() == "" {
					t.Errorf("%s: %+v has not lapsed", id, rec)
				}
				asking := &once.Operation[int]{Name: "charge", OnUnknown: once.Park}
				now, err := asking.Ask(ctx, s, rec)
				if err != nil || now.Status != once.Parked || s.Options().Sealing.OpenReason(now) != rec.Why() {
					t.Errorf("parked with %+v %v, want the reason %q", now, err, rec.Why())
				}
			}
			rec := failed("to be parked", errors.New("timeout"))
			now, err := (&once.Operation[int]{Name: "charge", OnUnknown: once.Park}).Ask(ctx, s, rec)
			if err != nil || now.Status != once.Parked || s.Options().Sealing.OpenReason(now) != "timeout" {
				t.Errorf("parked with %+v %v, want the reason of the attempt", now, err)
			}
			if sealed && now.Reason == "timeout" {
				t.Error("the reason of the attempt was sealed, and is plain now")
			}
		}
		for _, status := range []once.Status{once.Absent, once.Running, once.Parked, once.Done, once.Expired} {
			if (once.Record{Status: status}).Lapsed() {
				t.Errorf("a record that is %v has lapsed", status)
			}
		}
	})
}
