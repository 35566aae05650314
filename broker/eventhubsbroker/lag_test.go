package eventhubsbroker

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
)

func TestTheLagIsCountedFromPositions(t *testing.T) {
	w := newWorld(t, 2)
	log := w.open(t, 1).log
	source := w.broker.Log("orders", "$Default", nil).(*source) // nobody opens it
	part := -1                                                  // which has the messages
	none := map[string]broker.Position{}
	at := func(offset int64) map[string]broker.Position {
		name := fmt.Sprint("orders/", part)
		return map[string]broker.Position{name: {Log: log, Partition: name, Offset: offset}, "returns/0": {Log: "returns#1", Partition: "returns/0", Offset: 99}}
	}
	want := func(after map[string]broker.Position, n int64) {
		t.Helper()
		lag, err := source.LagFrom(soon(t), after)
		if err != nil || lag != (broker.Lag{Messages: n}) {
			t.Errorf("%v: %+v, %v; want %d", after, lag, err, n)
		}
	}
	wantErr := func(after map[string]broker.Position, text string) {
		t.Helper()
		lag, err := source.LagFrom(soon(t), after)
		if err == nil || !strings.Contains(err.Error(), text) || lag != (broker.Lag{}) {
			t.Errorf("%v: %+v, %v; want %q", after, lag, err, text)
		}
	}
	want(none, 0)
	w.publish(t, 10, "key")
	for i := range 2 {
		if len(w.HubEvents("orders", i)) > 0 {
			part = i
		}
	}
	want(none, 10)
	want(at(-1), 10)
	want(at(3), 6)
	want(at(9), 0)
	w.TrimHub("orders", part, 5) // retention
	want(none, 5)
	want(at(2), 5)
	want(at(4), 5)
	want(at(7), 2)
	w.TrimHub("orders", part, 10)
	want(none, 0)
	want(at(3), 0)
	want(at(9), 0)
	w.publish(t, 2, "key")
	want(none, 2)
	want(at(3), 2)
	want(at(9), 2)
	w.TruncateHub("orders", part, 11)
	want(at(10), 0)
	wantErr(at(11), "has lost its end")
	w.AddPartition("orders")
	want(at(10), 0)
	w.CreateHub("orders", 2)
	wantErr(at(10), "was recreated")
	if _, err := source.LagFrom(soon(t), at(10)); !errors.Is(err, broker.ErrInvalid) {
		t.Error(err)
	}
	w.DeleteHub("orders")
	wantErr(none, "does not tell")
}
