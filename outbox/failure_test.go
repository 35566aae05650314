package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func TestTheLastFailureIsFound(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		ctx, s := context.Background(), memstore.New(nil)
		if _, found, err := (outbox.Admin{Store: s}).LastFailure(ctx); found || err != nil {
			t.Errorf("an empty outbox has a failure: %v", err)
		}
		put := &once.Operation[int]{Name: "put"}
		var ms []*broker.Message
		for i := range 2500 { // more than a page
			ms = append(ms, &broker.Message{ID: fmt.Sprint("m", i), Topic: "t"})
		}
		if _, err := once.DoTx(ctx, s, put.For("1"), func(ctx context.Context, tx *memstore.Tx) (int, error) {
			return 0, outbox.New(s, nil).Put(ctx, tx, ms...)
		}); err != nil {
			t.Fatal(err)
		}
		fail := func(to store.OutgoingState, attempts int, reason string, ids ...string) {
			t.Helper()
			time.Sleep(time.Second)
			for _, from := range []store.OutgoingState{store.Pending, store.Held, store.Stuck} {
				found, err := s.Outgoing(ctx, store.OutgoingQuery{State: from, IDs: ids, Limit: 20_000})
				if err != nil {
					t.Fatal(err)
				}
				for i := range found {
					found[i].Attempts, found[i].Reason = attempts, reason
				}
				if _, err := s.MoveOutgoing(ctx, [16]byte{}, slices.Clone(found), to); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := func(id, reason string) {
			t.Helper()
			m, found, err := outbox.Admin{Store: s}.LastFailure(ctx)
			if err != nil || !found || m.Message.ID != id || m.Reason != reason {
				t.Errorf("the last failure is %v of %q: %q %v, want %q of %q", found, m.Message.ID, m.Reason, err, reason, id)
			}
		}
		fail(store.Stuck, 10, "no such topic", "m7")
		want("m7", "no such topic")
		fail(store.Held, 1, "timeout")
		fail(store.Held, 2, "no route", "m2400")
		want("m2400", "no route")
		fail(store.Stuck, 3, "refused", "m3")
		want("m3", "refused")
		fail(store.Held, 0, "an earlier message with the same ordering key waits", "m5")
		want("m3", "refused")
		fail(store.Held, 0, "no message gets through to topic t", "m6")
		want("m3", "refused")
	})
}
