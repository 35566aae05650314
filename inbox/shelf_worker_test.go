//go:build go1.25

package inbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// hanging is a store that has stopped answering.
type hanging struct{ *memstore.Store }

func (s hanging) Get(ctx context.Context, _ once.Key) (once.Record, error) {
	return once.Record{}, untilDone(ctx)
}

// A message is parked even if the run has ended, but a store that does not
// answer must not keep Run from returning.
func TestParkingAMessageFromTheShelfHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		m := store.Shelved{Consumer: "c", Key: "m0", Message: broker.Message{ID: "m0", Topic: "orders"}, State: store.Waiting}
		if err := st.Shelve(t.Context(), []store.Shelved{m}); err != nil {
			t.Fatal(err)
		}
		found, err := st.Shelved(t.Context(), store.ShelfQuery{})
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		e := &env{Consumer: &Consumer{Name: "c", Stats: new(Stats)}, store: hanging{st}, shelf: st, keyed: true, logger: st.Options().Logger}
		it := &item{Delivery: broker.Delivery{Message: &found[0].Message}, key: once.Key{Operation: "c", ID: "m0"}}
		w := newShelfWorker(e, nil)
		it.hold = w.newHold("")
		ctx, end := context.WithCancel(t.Context())
		end()
		begun := time.Now()
		r := w.parkShelved(ctx, it, found[0], errors.New("it fails for good"))
		if took := time.Since(begun); r.kind != parked || took > 2*storeTime {
			t.Errorf("%v after %v", r, took)
		}
	})
}
