package pgstore

import (
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// watch bounds what is sent to connections without a context, by looking at them now and then. A context costs each
// call a goroutine, and a deadline of its own on each connection a wake-up of the scheduler.
type watch struct {
	every time.Duration // it looks

	mu      sync.Mutex
	now     map[*watched]struct{}
	looking bool
}

// watched is a connection that has something to answer.
type watched struct {
	by    *watch
	wire  net.Conn
	until time.Time
	cut   bool
}

// watchIdle is how many looks at nothing it takes until nobody looks any more.
const watchIdle = 5

var connections = watch{every: time.Second, now: make(map[*watched]struct{})}

// limit lets what is sent to a connection end within endTime, or little later.
func limit(conn *pgx.Conn) *watched { return connections.add(conn.PgConn().Conn(), endTime) }

func (w *watch) add(wire net.Conn, limit time.Duration) *watched {
	one := &watched{by: w, wire: wire, until: time.Now().Add(limit)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now[one] = struct{}{}
	if !w.looking {
		w.looking = true
		go w.look()
	}
	return one
}

// look cuts the connections whose time has come.
func (w *watch) look() {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for idle := 0; ; {
		now := <-tick.C
		w.mu.Lock()
		if idle++; len(w.now) > 0 {
			idle = 0
		}
		for one := range w.now {
			if !one.cut && now.After(one.until) {
				one.cut = true
				_ = one.wire.SetDeadline(now) // fails where the connection does
			}
		}
		if idle > watchIdle {
			w.looking = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

// end is called when the answer is there, or when there will be none. It reports whether the connection was cut.
func (one *watched) end() (cut bool) {
	one.by.mu.Lock()
	defer one.by.mu.Unlock()
	delete(one.by.now, one)
	if one.cut {
		_ = one.wire.SetDeadline(time.Time{})
	}
	return one.cut
}
