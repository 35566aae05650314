package world

import (
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/cas"
)

// leases judges that a claim is its holder's until its lease has passed, as the
// holder counts it: from when it was asked for. It knows the true time, which no
// process does.
type leases struct {
	world *sim.World

	mu   sync.Mutex
	held map[string]hold // by key
}

// hold is a claim that its holder has not given up.
type hold struct {
	process string
	owner   [16]byte
	until   time.Time
}

// wrote is told of each row that a process has asked for, and the engine has
// written.
func (l *leases) wrote(p *sim.Process, row cas.Row, asked time.Time, lease time.Duration) {
	key := sim.KeyText(row.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	was, held := l.held[key]
	another := was.process != p.Name || row.Status == once.Running && was.owner != row.Owner
	if left := time.Until(was.until); held && another && left > 0 {
		l.world.Broke(Lease, key, "%s wrote %s, and %s holds it for %v more", p.Name, row.Status, was.process, left)
	}
	if row.Status != once.Running {
		delete(l.held, key)
		return
	}
	until := asked.Add(lease)
	if held && was.owner == row.Owner && (was.until.After(until) || time.Until(was.until) <= 0) {
		until = was.until // a call that was late: nobody works under a lease that was extended after its end
	}
	l.held[key] = hold{p.Name, row.Owner, until}
}
