//go:build go1.25

package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// damagedStore is a store in which the rows of messages with these IDs are
// damaged.
type damagedStore struct {
	*memstore.Store
	ids []string
}

func (s damagedStore) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	ms, err := s.Store.Outgoing(ctx, q)
	for i := range ms {
		if slices.Contains(s.ids, ms[i].Message.ID) {
			ms[i].Unopened = fmt.Errorf("%w: the row has no header", once.ErrCorrupt)
			ms[i].Message.Header, ms[i].Message.Body = nil, nil
		}
	}
	return ms, err
}

// A message whose row is damaged is Stuck with its reason, which a person can
// list. It is not published, and holds up only its ordering key.
func TestADamagedMessageIsStuck(t *testing.T) {
	for _, overtaking := range []bool{false, true} {
		t.Run(fmt.Sprint("overtaking ", overtaking), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.put(message("bad", "k"), message("after", "k"), message("other", "l"), message("free", ""), message("bad too", ""))
				r := b.relay()
				r.Overtaking = overtaking
				r.Store = damagedStore{b.store, []string{"bad", "bad too"}}
				stop := b.run(r)
				b.until("both are stuck, and the others published", func() bool {
					return len(b.rows(store.Stuck)) == 2 && len(b.sender.taken()) == 2
				})
				stop()
				if taken := b.sender.taken(); slices.Contains(taken, "bad") || slices.Contains(taken, "bad too") || slices.Contains(taken, "after") {
					t.Errorf("published: %q", taken)
				}
				stuck, err := outbox.Admin{Store: r.Store}.List(t.Context(), store.OutgoingQuery{State: store.Stuck})
				if err != nil || len(stuck) != 2 {
					t.Fatalf("stuck: %v, %v", stuck, err)
				}
				for _, m := range stuck {
					if m.Unopened == nil || !strings.Contains(m.Reason, "the row has no header") {
						t.Errorf("%q is stuck because of %q, and is listed with %v", m.Message.ID, m.Reason, m.Unopened)
					}
				}
			})
		})
	}
}
