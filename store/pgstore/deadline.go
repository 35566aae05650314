package pgstore

import (
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// deadlines bounds calls that use no context, by checking all of them from time
// to time. A context would cost each call a goroutine, and a deadline on each
// connection would wake up the scheduler.
type deadlines struct {
	every time.Duration // between two checks

	mu       sync.Mutex
	open     map[*deadline]struct{}
	checking bool // a goroutine checks them
}

// deadline is the deadline of a call on a connection.
type deadline struct {
	of    *deadlines
	wire  net.Conn
	until time.Time
	cut   bool // it has passed, and the call was canceled
}

// maxIdleChecks is after how many checks without a deadline the goroutine ends.
const maxIdleChecks = 5

var allDeadlines = deadlines{every: time.Second, open: make(map[*deadline]struct{})}

// limit bounds a call on a connection to endTime, or a little longer. The
// caller has to call end.
func limit(conn *pgx.Conn) *deadline { return allDeadlines.add(conn.PgConn().Conn(), endTime) }

func (d *deadlines) add(wire net.Conn, limit time.Duration) *deadline {
	one := &deadline{of: d, wire: wire, until: time.Now().Add(limit)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[one] = struct{}{}
	if !d.checking {
		d.checking = true
		go d.check()
	}
	return one
}

// check cancels the calls whose deadline has passed, until there are none.
func (d *deadlines) check() {
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for idle := 0; ; {
		now := <-tick.C
		d.mu.Lock()
		if idle++; len(d.open) > 0 {
			idle = 0
		}
		for one := range d.open {
			if !one.cut && now.After(one.until) {
				one.cut = true
				_ = one.wire.SetDeadline(now) // fails only if the connection has failed
			}
		}
		if idle > maxIdleChecks {
			d.checking = false
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
	}
}

// end ends the call. It reports whether the deadline had passed.
func (one *deadline) end() (cut bool) {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	delete(one.of.open, one)
	if one.cut {
		_ = one.wire.SetDeadline(time.Time{})
	}
	return one.cut
}
