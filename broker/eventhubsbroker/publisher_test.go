package eventhubsbroker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// A message whose confirmation is lost is an error, and its ID is the same when it
// is published again.
func TestALostConfirmationIsAnError(t *testing.T) {
	for name, stored := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			p := w.broker.Publisher()
			defer p.Close()
			var sends atomic.Int64
			w.OnTransfer = func(string) (store, answer bool) {
				first := sends.Add(1) == 1
				return !first || stored, !first
			}
			ms := []*broker.Message{{ID: "a", Topic: "orders", OrderingKey: "k"}, {ID: "b", Topic: "orders", OrderingKey: "k"}}
			errs := p.Publish(soon(t), ms)
			if len(errs) != 2 || errs[0] == nil || errs[1] == nil || errors.Is(errs[0], broker.ErrInvalid) {
				t.Fatal(errs)
			}
			await(t, "they are confirmed", func() bool { return p.Publish(soon(t), ms) == nil })
			want := []string{"a", "b"}
			if stored {
				want = append(want, want...)
			}
			if got := w.HubEvents("orders", 0); !slices.Equal(got, want) {
				t.Errorf("the hub has %q", got)
			}
		})
	}
}

// After a batch that failed, no later message of its key is sent.
func TestNoMessageOvertakesOneThatFailed(t *testing.T) {
	w := newWorld(t, 1)
	p := w.broker.Publisher()
	defer p.Close()
	var sends atomic.Int64
	w.OnTransfer = func(string) (store, answer bool) {
		second := sends.Add(1) == 2
		return !second, !second
	}
	var ms []*broker.Message
	for i := range 9 { // three fit into a batch
		ms = append(ms, &broker.Message{ID: fmt.Sprint(i), Topic: "orders", OrderingKey: "k", Body: make([]byte, 1300<<10)})
	}
	errs := p.Publish(soon(t), ms)
	if len(errs) != 9 || errs[2] != nil || errs[3] == nil || !errors.Is(errs[6], errEarlier) || !errors.Is(errs[8], errEarlier) {
		t.Fatal(errs)
	}
	if got := w.HubEvents("orders", 0); fmt.Sprint(got) != "[0 1 2]" {
		t.Errorf("the hub has %v", got)
	}
}

func TestAMessageThatIsTooLargeHoldsUpNothing(t *testing.T) {
	w := newWorld(t, 1)
	p := w.broker.Publisher()
	defer p.Close()
	var sends atomic.Int64
	w.OnTransfer = func(string) (bool, bool) { sends.Add(1); return true, true }
	ms := []*broker.Message{{ID: "a", Topic: "orders", OrderingKey: "k"}, {ID: "large", Topic: "orders", OrderingKey: "k", Body: make([]byte, 5<<20)},
		{ID: "b", Topic: "orders", OrderingKey: "k"}, {ID: "c", Topic: "no such hub", OrderingKey: "k"}, {ID: "d", Topic: "returns", OrderingKey: "k"}}
	errs := p.Publish(soon(t), ms)
	if len(errs) != 5 || errs[0] != nil || !errors.Is(errs[1], broker.ErrInvalid) || errs[2] != nil ||
		!errors.Is(errs[3], broker.ErrInvalid) || errs[4] == nil || errors.Is(errs[4], broker.ErrInvalid) {
		t.Fatal(errs)
	}
	if !strings.Contains(errs[1].Error(), `"large"`) || !strings.Contains(errs[1].Error(), "5242880 bytes") {
		t.Error(errs[1])
	}
	if got := w.HubEvents("orders", 0); fmt.Sprint(got) != "[a b]" {
		t.Errorf("the hub has %v", got)
	}
}

func TestAMessageArrivesAsItWasPublished(t *testing.T) {
	w := newWorld(t, 4)
	p := w.broker.Publisher()
	defer p.Close()
	long := strings.Repeat("k", 200)
	produced := time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC)
	ms := []*broker.Message{
		{ID: "1", Topic: "orders", OrderingKey: long, Body: []byte("body"), Header: map[string]string{"a": "b"}, Time: produced},
		{ID: "2", Topic: "orders", OrderingKey: long},
	}
	if errs := p.Publish(soon(t), ms); errs != nil {
		t.Fatal(errs)
	}
	ds := receiveN(t, w.open(t, 9), 2)
	m, next := ds[0].Message, ds[1].Message
	if m.ID != "1" || m.OrderingKey != long || string(m.Body) != "body" || len(m.Header) != 1 || m.Header["a"] != "b" || !m.Time.Equal(produced) {
		t.Errorf("%+v", m)
	}
	if next.ID != "2" || next.OrderingKey != long || next.Time.IsZero() || ds[1].Position.Offset != 1 {
		t.Errorf("%+v at %v", next, ds[1].Position)
	}
	if !ds[0].Redelivered {
		t.Error("nobody knows that it is the first delivery")
	}
	if key := partitionKey(long); len(key) > longestKey || key == partitionKey(long+"k") {
		t.Error(key)
	}
}
