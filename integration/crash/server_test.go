//go:build linux

package crash

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/server"
)

const (
	serverKills  = 2
	unitsBetween = 15 // acknowledged, at least, between two deaths of a server
	clients      = 8
)

// starters start a server that is ours to kill. SQLite has none: its processes are killed elsewhere.
var starters = map[string]func(context.Context) (*server.Instance, error){
	Postgres: server.StartPostgres,
	PGStore:  server.StartPostgres,
	Parts:    server.StartPostgres,
	MariaDB:  server.StartMariaDB,
}

// serverDies kills the database in the middle, and starts it again: what was acknowledged is there, exactly once.
func (a *arena) serverDies(t *testing.T, ctx context.Context) {
	instance, err := starters[a.engine](ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := instance.Stop(); err != nil {
			t.Error(err)
		}
	})
	l := &lane{place: place{Engine: a.engine, DSN: instance.DSN()}, outside: t.TempDir(), worlds: map[string]world{}}
	t.Cleanup(l.close)
	l.setUp(t, ctx)

	begun := time.Now()
	noted := &answers{first: map[string]string{}}
	acknowledged := make(chan struct{}, 1<<16) // nobody waits to be counted
	var units atomic.Int64
	working, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for range clients {
		wg.Go(func() {
			for working.Err() == nil {
				id := fmt.Sprintf("k%d", units.Add(1))
				s, _ := a.shared(l, id)
				answer, err := s.finish(ctx, eachPath) // the last one is finished, too
				if err != nil {
					t.Errorf("%s/%s: %v", a.engine, id, err)
					return
				}
				noted.note(id, answer)
				acknowledged <- struct{}{}
			}
		})
	}
	chance := a.chance("server")
	for range serverKills {
		for range unitsBetween + chance.IntN(unitsBetween) {
			select {
			case <-acknowledged:
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			}
		}
		if err := instance.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := instance.Restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range unitsBetween {
		<-acknowledged
	}
	stop()
	wg.Wait()
	before := len(noted.first)
	a.settleUp(t, ctx, l, slices.Collect(maps.Keys(noted.first)), noted)
	t.Logf("%s was killed %d times, %d acknowledged units of work are there, in %v", a.engine, serverKills, before, time.Since(begun).Round(time.Millisecond))
}
