package sim

import (
	"strings"
	"time"
)

// TroubleOf returns what has gone wrong in a process since a time: calls, its stalls,
// and outages of anything.
func (w *World) TroubleOf(p *Process, since time.Time) (all []Line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.result.History) - 1; i >= 0; i-- {
		l := w.result.History[i]
		if w.begin.Add(l.At).Before(since) {
			break
		}
		own := l.Who == p.Name && (l.Fault != NoFault || l.What == stalls || strings.HasPrefix(l.Note, "arrives late"))
		if own || l.What == "DOWN" || l.What == "BACK" {
			all = append(all, l)
		}
	}
	return all
}
