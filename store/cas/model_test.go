//go:build go1.25

package cas_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// A store on compare-and-swap answers every sequence of calls as the reference
// does.
func TestItAnswersLikeTheReference(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) { compare(t, seed) })
	}
}

// reopener is what both stores are.
type reopener interface {
	once.Store
	store.Reopener
}

func compare(t *testing.T, seed uint64) {
	chance := rand.New(rand.NewPCG(seed, 7))
	reference, tested := reopener(memstore.New(nil)), reopener(open(newTable()))
	keys := []once.Key{{Operation: "pay", ID: "1"}, {Scope: "s", Operation: "pay", ID: "2"}}
	owner := func() (o [16]byte) { o[0] = byte(1 + chance.IntN(3)); return o }
	short := func() time.Duration { return time.Duration(1+chance.IntN(20)) * time.Millisecond }
	for step := range 200 {
		fence := once.Fence{Key: keys[chance.IntN(len(keys))], Owner: owner(), Attempt: int64(chance.IntN(5))}
		if now, err := reference.Get(t.Context(), fence.Key); err == nil && chance.IntN(3) > 0 { // often a fence that holds
			fence.Attempt = now.Attempt
			if now.Owner != ([16]byte{}) {
				fence.Owner = now.Owner
			}
		}
		name, call := "a pause", func(reopener) (once.Record, error) { return once.Record{}, nil }
		switch chance.IntN(7) {
		case 0, 1:
			r := once.ClaimRequest{Fence: fence, Lease: short(), Cause: owner()}
			if chance.IntN(2) == 0 {
				r.Owner, r.Fingerprint = owner(), []byte{byte(chance.IntN(3))}
			}
			name, call = fmt.Sprintf("Claim %+v", r), func(s reopener) (once.Record, error) { return s.Claim(t.Context(), r) }
		case 2, 3:
			set := once.Settlement{Fence: fence, Status: once.Status(chance.IntN(6)), Reason: fmt.Sprint(step), KeepOutcome: short(), KeepKey: 10 * short()}
			if set.Status == once.Done {
				set.Outcome = once.Outcome{Body: []byte{byte(chance.IntN(2))}, Rejected: chance.IntN(2) == 0}
			}
			name, call = fmt.Sprintf("Settle %+v", set), func(s reopener) (once.Record, error) { return once.Record{}, s.Settle(t.Context(), set) }
		case 4:
			d := short()
			name, call = fmt.Sprintf("Extend %+v", fence), func(s reopener) (once.Record, error) { return once.Record{}, s.Extend(t.Context(), fence, d) }
		case 5:
			keep := short()
			name, call = fmt.Sprintf("Reopen %+v", fence), func(s reopener) (once.Record, error) {
				return once.Record{}, s.Reopen(t.Context(), fence, keep, "again")
			}
		default:
			time.Sleep(short()) // in a bubble
		}
		want, wantErr := call(reference)
		got, err := call(tested)
		same(t, seed, name, got, want, err, wantErr)
		for _, k := range keys {
			want, wantErr := reference.Get(context.Background(), k)
			got, err := tested.Get(context.Background(), k)
			same(t, seed, "Get after "+name, got, want, err, wantErr)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

func same(t *testing.T, seed uint64, name string, got, want once.Record, err, wantErr error) {
	t.Helper()
	for _, kind := range []error{once.ErrLeaseLost, once.ErrInvalid} {
		if errors.Is(err, kind) != errors.Is(wantErr, kind) {
			t.Errorf("seed %d: %s returned %v, and the reference %v", seed, name, err, wantErr)
		}
	}
	for _, rec := range []*once.Record{&got, &want} {
		if rec.Status == once.Unknown { // by how much it has lapsed is told with the precision of the clock
			rec.LeaseLeft = min(rec.LeaseLeft, -time.Millisecond)
		}
		if len(rec.Fingerprint) == 0 {
			rec.Fingerprint = nil
		}
		if len(rec.Outcome.Body) == 0 {
			rec.Outcome.Body = nil
		}
	}
	if !got.Created.Equal(want.Created) || !got.Updated.Equal(want.Updated) {
		t.Errorf("seed %d: %s: created %v and updated %v, in the reference %v and %v", seed, name, got.Created, got.Updated, want.Created, want.Updated)
	}
	got.Created, got.Updated, want.Created, want.Updated = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("seed %d: %s returned\n%+v, and the reference\n%+v", seed, name, got, want)
	}
}
