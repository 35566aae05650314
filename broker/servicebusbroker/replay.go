package servicebusbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker"
)

// replayWait is how long Replay waits for the next dead letter.
const replayWait = 2 * time.Second

// Replay sends up to limit dead letters of a queue or a subscription again and
// removes them. It returns how many. They have their IDs, after the messages that
// are there, and with another MessageId, because duplicate detection would drop
// them. Those of a subscription go to its topic, and so to its other subscriptions
// too. If Replay fails between the two steps, a message is sent and still a dead
// letter.
func (b *Broker) Replay(ctx context.Context, of broker.Source, limit int) (n int, err error) {
	dead := sourceOf(b.DeadLetters(of))
	if dead.entity == "" {
		return 0, fmt.Errorf("%w: the source is not of this package", broker.ErrInvalid)
	}
	from, err := dead.receiver()
	if err != nil {
		return 0, dead.explain("replay", err)
	}
	to, err := b.client.NewSender(dead.entity, nil)
	if err != nil {
		return 0, errors.Join(dead.explain("replay", err), from.Close(ctx))
	}
	for n < limit {
		raw, err := receiveOne(ctx, from)
		if raw == nil || err != nil {
			return n, dead.closeReplay(ctx, err, from, to)
		}
		if err = to.SendMessage(ctx, replacement(raw, dead), nil); err == nil {
			err = from.CompleteMessage(ctx, raw, nil)
		}
		if err != nil {
			return n, dead.closeReplay(ctx, err, from, to)
		}
		n++
	}
	return n, dead.closeReplay(ctx, nil, from, to)
}

// receiveOne returns nil if no message comes.
func receiveOne(ctx context.Context, from *azservicebus.Receiver) (*azservicebus.ReceivedMessage, error) {
	waiting, cancel := context.WithTimeout(ctx, replayWait)
	defer cancel()
	for {
		raws, err := from.ReceiveMessages(waiting, 1, nil)
		switch {
		case len(raws) > 0:
			return raws[0], nil
		case waiting.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, err
		}
	}
}

func (s *source) closeReplay(ctx context.Context, err error, from *azservicebus.Receiver, to *azservicebus.Sender) error {
	if err = errors.Join(err, from.Close(ctx), to.Close(ctx)); err != nil {
		return s.explain("replay", err)
	}
	return nil
}
