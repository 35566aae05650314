package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/legible"
)

const (
	checkEvery  = 5 * time.Minute  // while somebody looks
	checkTime   = 30 * time.Second // limit of an examination
	maxFindings = 50               // of a store that are shown
)

// Severity ranks a [Finding].
type Severity int

const (
	Note    Severity = iota + 1 // for information
	Warning                     // needs attention soon
	Unsafe                      // a promise does not hold: effects can be lost or doubled, or nothing works
)

func (s Severity) String() string {
	names := [...]string{"note", "note", "warning", "unsafe"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("severity(%d)", int(s))
	}
	return names[s]
}

// Finding is something about a store that is unsafe, or needs attention.
type Finding struct {
	Name     string // stable, such as synchronous_commit-off
	Severity Severity
	What     string // what was seen
	Means    string
	Do       string
}

// checkup is the latest examination of a store.
type checkup struct {
	At       time.Time // when it ended; zero: never
	Findings []Finding // the worst first
	Problem  string    // why it could not be made
}

// checkups are the latest examinations. Pages only show them.
type checkups struct {
	mu      sync.Mutex
	begun   map[string]time.Time // by the name of the store
	running map[string]bool
	latest  map[string]checkup
}

func (u *checkups) of(store string) checkup {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.latest[store]
}

// begin reports whether a store is to be examined now.
func (u *checkups) begin(store string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	last, before := u.begun[store]
	if u.running[store] || before && now.Sub(last) < checkEvery {
		return false
	}
	if u.begun == nil {
		u.begun, u.running, u.latest = make(map[string]time.Time), make(map[string]bool), make(map[string]checkup)
	}
	u.begun[store], u.running[store] = now, true
	return true
}

func (u *checkups) end(store string, of checkup) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.latest[store] = of
}

// returned allows the next examination of a store. Until the doctor returns, it is
// not called again, also if it was given up.
func (u *checkups) returned(store string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.running, store)
}

// checkUp has stores examined if somebody looks at the overview, and if the last
// time is long enough ago. It does not wait for that.
func (c *Console) checkUp(ctx context.Context) {
	if ctx.Err() != nil || !c.sampler.isWatched(c.now()) {
		return
	}
	for _, s := range c.o.Stores {
		if s.Doctor == nil || !c.checkups.begin(s.Name, c.now()) {
			continue
		}
		c.running.Add(1)
		go func() {
			defer c.running.Done()
			found, err := c.examine(ctx, s)
			of := checkup{At: c.now(), Findings: found}
			if err != nil {
				c.log.WarnContext(ctx, "console: a store cannot be examined", "store", s.Name, "error", err)
				of.Problem = legible.Text(err.Error())
			}
			c.checkups.end(s.Name, of)
			c.sampler.tell()
		}()
	}
}

// examine returns what the doctor finds about a store, the worst first.
func (c *Console) examine(ctx context.Context, s Store) (all []Finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	late, end := patient(ctx)
	defer end()
	all, err = contained(late, c, s.Name, func() (found []Finding, err error) {
		defer c.checkups.returned(s.Name)
		defer func() {
			if cause := recover(); cause != nil {
				c.log.Error("console: an examination panicked", "store", s.Name, "panic", cause, "stack", string(debug.Stack()))
				err = errors.New("the examination panicked, see the log")
			}
		}()
		found, err = s.Doctor(ctx)
		return slices.Clone(found), err
	})
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return all, err
}

// diagnosis is a checkup as the overview shows it.
type diagnosis struct {
	Ago     string // empty: not examined yet
	Problem string
	Pressing,
	Notes []Finding
	More   int
	Unsafe bool
}

func (c *Console) diagnosisOf(s Store) *diagnosis {
	if s.Doctor == nil {
		return nil
	}
	of := c.checkups.of(s.Name)
	d := &diagnosis{Problem: of.Problem}
	if !of.At.IsZero() {
		if d.Ago = "just now"; c.now().Sub(of.At) >= time.Second {
			d.Ago = c.ago(of.At)
		}
	}
	if d.More = len(of.Findings) - maxFindings; d.More > 0 {
		of.Findings = of.Findings[:maxFindings]
	}
	d.More = max(d.More, 0)
	for _, f := range of.Findings {
		d.Unsafe = d.Unsafe || f.Severity >= Unsafe
		if f.Severity >= Warning {
			d.Pressing = append(d.Pressing, f)
		} else {
			d.Notes = append(d.Notes, f)
		}
	}
	return d
}
