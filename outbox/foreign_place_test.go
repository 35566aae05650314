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
	batch := []store.Outgoing{{Seq: 7}, {Seq: 8, Changed: time.Now()}, {Seq: 9}}
	for i := range batch {
		batch[i].Message = broker.Message{ID: "m", Topic: "orders", Header: map[string]string{broker.PlaceHeader: "999"}}
	}
	batch[2].Message.Header = nil
	ms, opened, failed, invalid := (&round{carrier: &carrier{env: r.env}}).open(batch)
	if len(invalid) != 1 || invalid[0].Seq != 7 || invalid[0].Reason != errForeignPlace.Error() || len(failed) != 0 {
		t.Errorf("refused are %v, and failed %v, want the row that no relay has changed", invalid, failed)
	}
	if len(ms) != 2 || len(opened) != 2 || ms[0].Header[SeqHeader] != "999" || ms[1].Header[SeqHeader] != "9" {
		t.Errorf("published are %v", ms)
	}
}
