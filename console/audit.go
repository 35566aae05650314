package console

import (
	"slices"
	"sync"
	"time"
)

// maxTrail bounds the memory of the audit page, and maxOfKind what does not change
// anything: nobody can push the changes off the page by signing in again and again.
// The log has everything.
const maxTrail = 1000

var maxOfKind = map[kind]int{looked: 300, signed: 100}

// kind is what sort of thing a person did.
type kind int

const (
	changed kind = iota
	looked       // at what is not shown to everybody
	signed       // in or out
)

// deed is something that a person did.
type deed struct {
	kind   kind
	At     time.Time
	By     string
	What   string
	Of     string // which messages, for the page only: the log has no reasons of messages
	Store  string
	Key    keyRef
	Reason string

	consumer string // that was changed, by its name since
}

// trail remembers the latest deeds.
type trail struct {
	mu  sync.Mutex
	all []deed
}

func (t *trail) add(d deed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if most := maxOfKind[d.kind]; most > 0 {
		t.makeRoom(most, func(other deed) bool { return other.kind == d.kind })
	}
	t.makeRoom(maxTrail, func(deed) bool { return true })
	t.all = append(t.all, d)
}

// makeRoom forgets the oldest of some deeds if there are most of them.
func (t *trail) makeRoom(most int, of func(deed) bool) {
	n, oldest := 0, 0
	for i := len(t.all) - 1; i >= 0; i-- {
		if of(t.all[i]) {
			n, oldest = n+1, i
		}
	}
	if n >= most {
		t.all = slices.Delete(t.all, oldest, oldest+1)
	}
}

// latest returns the deeds, the latest first.
func (t *trail) latest() []deed {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]deed, len(t.all))
	for i, d := range t.all {
		out[len(out)-1-i] = d
	}
	return out
}

// record writes a deed to the log and to the trail.
func (v *view) record(d deed, more ...any) {
	d.At, d.By = v.now(), v.who.Name
	attrs := []any{"deed", d.What, "by", d.By, "role", v.who.Role.String(), "from", v.r.RemoteAddr}
	if d.Store != "" {
		attrs = append(attrs, "store", d.Store)
	}
	if d.Key.Operation != "" {
		attrs = append(attrs, "key", d.Key.Key)
	}
	if d.Reason != "" {
		attrs = append(attrs, "reason", d.Reason)
	}
	v.log.InfoContext(v.r.Context(), "console: audit", append(attrs, more...)...)
	v.trail.add(d)
}

func (v *view) audit() {
	v.render(200, "audit", page{Title: "Audit", Nav: "audit", Body: v.trail.latest()})
}
