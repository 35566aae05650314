package outbox

import (
	"context"
	"errors"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

// HandingOver is a [broker.Publisher] that puts messages on the shelf of a store, as
// that of package storebroker. A relay of the outbox of the same store publishes and
// ends them in one commit. Through other publishers, and from other stores, it
// publishes messages and then ends them.
type HandingOver interface {
	broker.Publisher

	// HandsOver reports whether HandOver can be used for messages of an outbox.
	HandsOver(from store.Relayable) bool

	// HandOver is Publish of messages, as they are in as, and [store.Relayable.Sent]
	// of those that were published, in one commit. A message that Sent would not
	// change is not published. Its error wraps once.ErrLeaseLost. So do those of later
	// messages with its ordering key.
	HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, as []*broker.Message, then store.Ending) []error
}

// handingOver returns the publisher of a relay if it can hand messages over.
func handingOver(r *Relay) HandingOver {
	if p, ok := r.Publisher.(HandingOver); ok && p.HandsOver(r.Store) {
		return p
	}
	return nil
}

// errTaken is the error of a message that was not published, because it is no
// longer this relay's.
var errTaken = errors.New("outbox: the message was changed concurrently")

// call calls the publisher. If that hands messages over, those that were published
// are settled.
func (t *tableRelay) call(ctx context.Context, ms []store.Outgoing, as []*broker.Message) []error {
	if t.handOver == nil {
		return t.Publisher.Publish(ctx, as)
	}
	errs := t.handOver.HandOver(ctx, t.me(), ms, as, t.Then)
	if len(errs) != len(ms) { // nil, or wrong
		return errs
	}
	var taken []store.Outgoing
	for i, err := range errs {
		if errors.Is(err, once.ErrLeaseLost) {
			errs[i], taken = errTaken, append(taken, ms[i])
		}
	}
	if len(taken) > 0 {
		t.Logger.WarnContext(ctx, "outbox: messages were changed concurrently, and are not published",
			logs.Spaced(""), "messages", len(taken), "first", taken[0].Message.ID)
		t.lanes.doubt(taken)
	}
	return errs
}
