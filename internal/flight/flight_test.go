package flight_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/flight"
)

func TestOneFliesAndTheOthersJoin(t *testing.T) {
	var g flight.Group[string, int]
	var calls, joins atomic.Int64
	var wg sync.WaitGroup
	flying, land := make(chan struct{}), make(chan struct{})
	until := time.Now().Add(time.Minute)
	wg.Add(1)
	go func() {
		defer wg.Done()
		g.Do(context.Background(), "k", until, func() int { close(flying); <-land; return 7 }, same)
	}()
	<-flying
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v, joined, late := g.Do(context.Background(), "k", until, func() int { calls.Add(1); return 7 }, same)
			if joined {
				joins.Add(1)
			}
			if joined && v != 7 || late {
				t.Errorf("%d, %v, %v", v, joined, late)
			}
		}()
	}
	if v, joined, late := g.Do(context.Background(), "other", until, func() int { return 1 }, same); v != 0 && v != 1 || joined || late {
		t.Errorf("another key: %d, %v, %v", v, joined, late)
	}
	close(land)
	wg.Wait()
	if calls.Load()+joins.Load() != 16 {
		t.Errorf("%d calls and %d joins", calls.Load(), joins.Load())
	}
}

func TestJoinIsBounded(t *testing.T) {
	var g flight.Group[string, int]
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	g.Do(context.Background(), "k", time.Now(), func() int {
		if _, joined, late := g.Do(context.Background(), "k", time.Now(), nil, same); joined || !late {
			t.Error("joined after its time")
		}
		if _, joined, late := g.Do(cancelled, "k", time.Now().Add(time.Hour), nil, same); joined || !late {
			t.Error("joined after its context")
		}
		return 0
	}, same)
}

func TestAPanicLandsTheFlight(t *testing.T) {
	var g flight.Group[string, int]
	func() {
		defer func() { _ = recover() }()
		g.Do(context.Background(), "k", time.Now(), func() int { panic("boom") }, same)
	}()
	ran := false
	g.Do(context.Background(), "k", time.Now(), func() int { ran = true; return 0 }, same)
	if !ran {
		t.Error("the key is stuck")
	}
}

func same(v int) int { return v }
