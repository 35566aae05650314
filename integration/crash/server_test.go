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
	unitsBetween = 15 // acknowledged between two crashes of a server
	clients      = 8
)

// starters start a private server to kill. SQLite has none: other tests kill
// its processes.
var starters = map[string]func(context.Context) (*server.Instance, error){
	Postgres: server.StartPostgres,
	PGStore:  server.StartPostgres,
	Parts:    server.StartPostgres,
	MariaDB:  server.StartMariaDB,
}

// serverDies kills the database during work, and restarts it. Each acknowledged
// effect must exist exactly once.
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
	acknowledged := make(chan struct{}, 1<<16) // large enough that no sender waits
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
				answer, err := s.finish(ctx, eachPath) // also finishes the last one
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
