package flight_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/flight"
)

type group = flight.Group[string, int]

// fly takes the flight of "k", or joins it. It reports whether it joined.
func fly(g *group, until time.Time, call func() int) (v int, joined bool) {
	own := new(flight.Flight[int])
	first, v, landed := g.Enter(context.Background(), "k", own, until)
	if !first {
		return v, landed
	}
	defer func() { g.Land("k", own, v, same) }()
	v = call()
	return v, false
}

func TestOneFliesAndTheOthersJoin(t *testing.T) {
	var g group
	var calls, joins atomic.Int64
	var wg sync.WaitGroup
	flying, land := make(chan struct{}), make(chan struct{})
	until := time.Now().Add(time.Minute)
	wg.Add(1)
	go func() {
		defer wg.Done()
		fly(&g, until, func() int { close(flying); <-land; return 7 })
	}()
	<-flying
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v, joined := fly(&g, until, func() int { calls.Add(1); return 7 })
			if joined {
				joins.Add(1)
			}
			if v != 7 {
				t.Errorf("got %d, joined: %v", v, joined)
			}
		}()
	}
	own := new(flight.Flight[int])
	if first, _, _ := g.Enter(context.Background(), "other", own, until); !first {
		t.Fatal("another key was joined")
	}
	g.Land("other", own, 1, same)
	close(land)
	wg.Wait()
	if calls.Load()+joins.Load() != 16 {
		t.Errorf("%d calls and %d joins", calls.Load(), joins.Load())
	}
}

func TestJoinIsBounded(t *testing.T) {
	var g group
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	fly(&g, time.Now(), func() int {
		own := new(flight.Flight[int])
		if first, _, landed := g.Enter(context.Background(), "k", own, time.Now()); first || landed {
			t.Error("joined after its time")
		}
		if first, _, landed := g.Enter(cancelled, "k", own, time.Now().Add(time.Hour)); first || landed {
			t.Error("joined after its context")
		}
		return 0
	})
}

func TestAPanicLandsTheFlight(t *testing.T) {
	var g group
	func() {
		defer func() { _ = recover() }()
		fly(&g, time.Now(), func() int { panic("boom") })
	}()
	ran := false
	fly(&g, time.Now(), func() int { ran = true; return 0 })
	if !ran {
		t.Error("the key is stuck")
	}
}

func same(v int) int { return v }
