package world

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
)

// judgeRecorded judges that what a caller is told is recorded: each other caller of
// its key gets it, too, until it may be forgotten.
func (l *life[Tx]) judgeRecorded(k once.Key, a Answer) {
	is := l.shop.record(k)
	switch {
	case l.Now() >= a.At+l.Policy.KeepKey:
	case is.Status == once.Expired:
	case is.Status != once.Done:
		l.Broke(OneAnswer, sim.KeyText(k), "a caller was told %q, and its key is %s: %s", a.Text, is.Status, is.Reason)
	case !is.Outcome.Omitted && !bytes.Contains(is.Outcome.Body, []byte(a.Text)):
		l.Broke(OneAnswer, sim.KeyText(k), "a caller was told %q, and recorded is %.200s", a.Text, is.Outcome.Body)
	}
}

// holds judges, until ends is called, that work goes on only while the lease of its
// claim lasts: its context ends before. A process that has stalled learns it later.
func (l *life[Tx]) holds(ctx context.Context) (ends func()) {
	claim, ok := once.ClaimFrom(ctx)
	if !ok {
		return func() {}
	}
	l.judgeHeld(claim, "begins")
	stop := context.AfterFunc(ctx, func() { l.judgeHeld(claim, "is told to end") })
	return func() {
		if stop() {
			l.judgeHeld(claim, "ends")
		}
	}
}

func (l *life[Tx]) judgeHeld(claim once.Claim, does string) {
	if l.p.IsDead() || l.Running().Err() != nil || l.HasStalled() && l.StallsOf(l.p.Name, time.Time{}, time.Now()) > 0 {
		return
	}
	is := l.shop.record(claim.Key)
	if is.Status == once.Running && is.Attempt == claim.Attempt {
		return
	}
	l.Broke(Lease, sim.KeyText(claim.Key), "the work of attempt %d %s, and attempt %d is %s, %v after its lease",
		claim.Attempt, does, is.Attempt, is.Status, -is.LeaseLeft)
}

// plainAnswers is a Codec whose outcomes are text, as those of many programs.
type plainAnswers struct{}

const plainType = "text/plain"

func (plainAnswers) Encode(a Answer) (once.Outcome, error) {
	body, err := json.Marshal(a)
	return once.Outcome{Body: body, ContentType: plainType}, err
}

// Decode takes no body for an answer without anything in it.
func (plainAnswers) Decode(out once.Outcome) (a Answer, err error) {
	if len(out.Body) == 0 {
		return a, nil
	}
	return a, json.Unmarshal(out.Body, &a)
}
