package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/testenv"
)

type seekerFunc func(broker.Position) error

func (f seekerFunc) Seek(_ context.Context, p broker.Position) error { return f(p) }

// Workers ask for lanes while the source takes its time to read another one again.
// What they ask for meanwhile is still to be done afterwards.
func TestWorkersMayAskWhileALaneIsReadAgain(t *testing.T) {
	r := newRereads(nil)
	first, later := broker.Position{Partition: "0", Offset: 3}, broker.Position{Partition: "0", Offset: 1}
	other := broker.Position{Partition: "1", Offset: 7}
	r.seeker = seekerFunc(func(p broker.Position) error {
		if p == first {
			r.ask("lane 0", later)
			r.ask("lane 1", other)
		}
		return nil
	})
	r.ask("lane 0", first)
	done := make(chan error)
	go func() {
		_, err := r.seek(t.Context(), nil, func(string) {})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testenv.Patience):
		t.Fatal("a worker waits for the source")
	}
	if asked := r.toSeek(); len(asked) != 2 || asked["lane 0"] != later || asked["lane 1"] != other {
		t.Errorf("still to be read again: %v", asked)
	}
	if !r.isStale(&item{lane: "lane 0"}) || r.isStale(&item{lane: "lane 2"}) {
		t.Error("a message received before its lane is read again is stale, and no other is")
	}
}
