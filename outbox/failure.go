package outbox

import (
	"context"
	"strings"

	"github.com/effectively-once/once/store"
)

// Bounds of the messages that LastFailure reads, in each state.
const failuresPage, maxFailuresRead = 1000, 10_000

// LastFailure returns the message that failed last, of those that are Held or
// Stuck: its Reason is the last error of a relay, and Changed is when it was
// written. found is false if no message has failed. Of more than 10,000 messages
// in a state, it reads those that were put first.
//
// While nothing at all gets through, relays blame no message. After 5 seconds they
// write their error to the first one that waits, and again each minute. That
// message is Pending, and as good as any other. Relays that read the database's log
// have it only in their own log.
func (d Admin) LastFailure(ctx context.Context) (last store.Outgoing, found bool, err error) {
	for _, state := range []store.OutgoingState{store.Held, store.Stuck} {
		q := store.OutgoingQuery{State: state, Limit: failuresPage, Bodiless: true}
		for read := 0; read < maxFailuresRead; {
			page, err := d.Store.Outgoing(ctx, q)
			if err != nil {
				return last, false, err
			}
			for _, m := range page {
				if m.Attempts > 0 && m.Reason != "" && m.Reason != heldReason && (!found || m.Changed.After(last.Changed)) {
					last, found = m, true
				}
			}
			if read += len(page); len(page) < failuresPage {
				break
			}
			q.After = page[len(page)-1].Seq
		}
	}
	waiting, err := d.Store.Outgoing(ctx, store.OutgoingQuery{State: store.Pending, Limit: failuresPage, Bodiless: true})
	if err != nil {
		return last, false, err
	}
	for _, m := range waiting {
		if reason, noted := strings.CutPrefix(m.Reason, refusedReason); noted && (!found || last.Changed.Before(m.Changed)) {
			last, found = m, true
			last.Reason = reason
		}
	}
	return last, found, nil
}
