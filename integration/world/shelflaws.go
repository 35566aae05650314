package world

import (
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
)

// success is an attempt in a transaction whose handler has succeeded.
type success struct {
	p     *sim.Process
	begun time.Time
	at    time.Duration // the same in the world
}

// begins judges that the handler of a message is called again although it has
// succeeded in an attempt before.
func (l *ledger) begins(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[id].at[consumer]
	if h.success != nil && h.done == 0 && h.discarded == 0 && !l.hasTrouble(h.success, id) {
		l.world.Broke(Wasted, id, "%s calls its handler again, which has succeeded in the attempt of %s that began %v ago", consumer,
			h.success.p.Name, time.Since(h.success.begun).Round(time.Millisecond))
	}
	h.success = nil
}

// succeeds records that the handler of a message has succeeded in an attempt.
func (l *ledger) succeeds(p *sim.Process, id, consumer string, begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters[id].at[consumer].success = &success{p, begun, l.world.Now() - time.Since(begun)}
}

// hasTrouble reports whether an attempt may have been in vain: its process came to
// harm, or a call about it went wrong. One reply to a renewal may be lost, because the
// process then looks at the row. Its caller holds mu.
func (l *ledger) hasTrouble(s *success, id string) bool {
	if s.p.IsDead() || s.p.IsStopped() || l.world.AnyDown() {
		return true
	}
	renewals := 0
	for _, t := range l.world.TroubleOf(s.p, s.begun.Add(-sim.Latest)) {
		late := t.Fault != sim.After && t.Fault != sim.Before
		about := strings.Contains(t.About, id)
		switch {
		case !late && t.At < s.at, !about && t.What != "Shelved" && t.Fault != sim.NoFault:
		case t.What == "Change" && !late:
			renewals++
		default:
			return true
		}
	}
	return renewals > 1
}

// isOf reports whether what waiting returned is about a message of a topic.
func (l *ledger) isOf(waiting, topic string) bool {
	_, id, found := strings.Cut(waiting, "/")
	if !found {
		id = waiting
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.letters[id].topic == topic
}

// judgeAttempts judges that a message which was parked on the shelf has no attempt
// left there. The attempts at copies count for the copies that the broker delivers.
func (m *mail) judgeAttempts(s store.Shelved, consumer string) {
	if consumer != ledgerName || m.Rolling || m.Shape.Position || m.Shape.Charged || s.Attempts >= m.Attempts {
		return
	}
	if strings.Contains(s.Reason, once.ErrParked.Error()) && m.FaultsAbout("operator", s.Message.ID) > 0 {
		return // who gave it up lost the reply, and has left its key with an unknown outcome
	}
	m.Broke(Blame, s.Message.ID, "parked by %s after %d of %d attempts: %s", consumer, s.Attempts, m.Attempts, s.Reason)
}

// charged judges that the step of a message is taken after a person was told that the
// message is given up. The step of a copy may be under way then, and the person is not
// told of it. Its caller holds mu.
func (l *ledger) charged(id string) {
	if l.letters[id].stored == 1 && l.letters[id].at[ledgerName].givenUp && l.isClean(id, ledgerName) {
		l.world.Broke(Decision, id, "%s takes its step, and a person was told that it is given up there", ledgerName)
	}
}
