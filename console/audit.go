package console

import (
	"sync"
	"time"
)

// maxTrail bounds the memory of the audit page. The log has everything.
const maxTrail = 1000

// deed is something that a person did.
type deed struct {
	At     time.Time
	By     string
	What   string
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
	if len(t.all) == maxTrail {
		t.all = t.all[:copy(t.all, t.all[1:])]
	}
	t.all = append(t.all, d)
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
