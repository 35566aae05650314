package outbox

import (
	"context"
	"time"

	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// refusedReason begins the Reason of a Pending message that has the error of an
// outage.
const refusedReason = "nothing gets through: "

const (
	outageAfter = 5 * time.Second // a shorter outage is only logged
	outageEvery = time.Minute     // how often its error is written again
)

// outage is the time in which nothing gets through.
type outage struct {
	since time.Time // zero: there is none
	noted time.Time // when its error was last written
}

// noteOutage writes why nothing gets through to the first message that waits, where
// [Admin.LastFailure] finds it. No message is to blame, so this one stays Pending
// and has no more attempts. That is one row in a minute, of a table that relays may
// write.
func (t *tableRelay) noteOutage(working context.Context, head store.Outgoing, out outcome, search searchPhase) {
	if !out.refused {
		if out.carried > 0 {
			t.outage = outage{}
		}
		return
	}
	now := time.Now()
	if t.outage.since.IsZero() {
		t.outage.since = now
	}
	due := now.Sub(t.outage.since) >= outageAfter && now.Sub(t.outage.noted) >= outageEvery
	if !due || search != firstChunk || out.first == nil {
		return
	}
	if head.Unopened != nil || isForeignPlace(&head) { // what tells such a row is that no relay has changed it
		return
	}
	t.outage.noted = now
	head.Reason = name.Reason(refusedReason + out.first.Reason)
	if _, err := t.move(working, []store.Outgoing{head}, store.Pending); err != nil {
		t.Logger.WarnContext(working, "outbox: the error of an outage could not be stored", logs.Spaced(""), "error", err)
	}
}
