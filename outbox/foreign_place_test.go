//go:build go1.25

package outbox

import (
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// The header of messages from a log that were set aside decides on once-seq. A
// program that inserts a row with it is refused.
func TestAForeignRowCannotChooseItsNumber(t *testing.T) {
	r, err := newRun(&Relay{Store: memstore.New(nil), Publisher: idlePublisher{}})
	if err != nil {
		t.Fatal(err)
	}
	r.env.logged = true
	aside := store.Outgoing{LogPlace: 999, Message: broker.Message{ID: "m"}}
	ours := r.env.numbered(nil, &aside)
	other := store.Outgoing{LogPlace: 999, Message: broker.Message{ID: "another"}}
	plain := map[string]string{broker.PlaceHeader: "999"}
	for _, c := range []struct {
		header  map[string]string
		changed bool // by a relay: it was delayed, held, noted by an outage or set aside
		want    string
	}{
		{plain, false, ""}, {ours, false, ""}, {nil, false, "7"}, {nil, true, "7"},
		{ours, true, "999"}, {plain, true, "7"}, {r.env.numbered(nil, &other), true, "7"},
		{map[string]string{broker.PlaceHeader: ours[broker.PlaceHeader] + "0"}, true, "7"}, {map[string]string{broker.PlaceHeader: ""}, true, "7"},
	} {
		m := store.Outgoing{Seq: 7, Message: broker.Message{ID: "m", Topic: "orders", Header: c.header}}
		if c.changed {
			m.Changed = time.Now()
		}
		ms, _, failed, invalid := (&round{carrier: &carrier{env: r.env}}).open([]store.Outgoing{m})
		switch {
		case len(failed) > 0, len(ms)+len(invalid) != 1:
			t.Errorf("%v: failed are %v, invalid %v", c, failed, invalid)
		case c.want == "" && (len(invalid) != 1 || invalid[0].Reason != errForeignPlace.Error()):
			t.Errorf("%v is not refused", c)
		case c.want != "" && (len(ms) != 1 || ms[0].Header[SeqHeader] != c.want || ms[0].Header[broker.PlaceHeader] != ""):
			t.Errorf("%v is published as %v", c, ms)
		}
	}
}
