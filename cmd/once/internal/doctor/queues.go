package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// queue is that of a consumer whose messages come through the store.
type queue struct {
	consumer string        // a name that is in use
	keys     string        // whose queue it is
	topics   []string      // of all its sources
	seen     time.Duration // since any of its processes registered
	lag      broker.Lag
}

func (q queue) String() string {
	return fmt.Sprintf("%s (%s, the oldest %s)", show.Line(q.consumer),
		show.Count(q.lag.Messages, "message", "messages"), show.Ago(q.lag.Oldest))
}

// queues looks at the queues that the store carries: see package storebroker.
func queues(ctx context.Context, e *examination) error {
	s, err := target.Need[store.Shelf](e.Target, target.AShelf)
	if err != nil {
		return err
	}
	waiting, err := waitingQueues(ctx, e, s)
	if err != nil {
		return err
	}
	var gone []string
	for _, q := range waiting {
		if q.seen > unread && q.lag.Oldest > unread {
			gone = append(gone, fmt.Sprintf("%v, not seen since %s", q, show.Ago(q.seen)))
		}
	}
	if len(gone) > 0 {
		e.found("queue-unread", Warning, "Messages wait in the store, and nobody takes them: "+strings.Join(gone, "; ")+".",
			"These consumers do not run. What is published to their topics is kept for them, and their queues grow.",
			"Start them. If one is gone for good: once consumers retire --discard.")
	}
	if _, many := once.As[store.ShelfBatch](e.Store); many { // its queues are rows, and have no limit
		return nil
	}
	return fullQueues(ctx, e, waiting)
}

// waitingQueues returns the queues that have messages, the largest first.
func waitingQueues(ctx context.Context, e *examination, s store.Shelf) ([]queue, error) {
	registry, err := target.Need[store.Registry](e.Target, target.ARegistry)
	if err != nil {
		return nil, err
	}
	all, err := registry.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	byKeys := make(map[string]*queue)
	for _, c := range all {
		topic, ok := store.TopicOf(c.Source)
		if !ok || !c.IsLegible() || store.IsRetired(all, c.Name) {
			continue
		}
		q := byKeys[c.Keys]
		if q == nil {
			q = &queue{consumer: c.Name, keys: c.Keys, seen: c.Seen}
			byKeys[c.Keys] = q
		}
		q.topics = append(q.topics, topic)
		if c.Seen < q.seen {
			q.consumer, q.seen = c.Name, c.Seen
		}
	}
	var waiting []queue
	for _, q := range byKeys {
		if q.lag, err = store.QueueLag(ctx, s, q.keys); err != nil {
			return nil, err
		}
		if q.lag.Messages > 0 {
			waiting = append(waiting, *q)
		}
	}
	slices.SortFunc(waiting, func(a, b queue) int {
		return cmp.Or(cmp.Compare(b.lag.Messages, a.lag.Messages), strings.Compare(a.keys, b.keys))
	})
	return waiting, nil
}

// fullQueues finds topics whose messages fail to get into queues that have messages.
// A store that keeps a queue in one document does not say how much room it has.
func fullQueues(ctx context.Context, e *examination, waiting []queue) error {
	messages, err := target.Need[store.Relayable](e.Target, target.AnOutbox)
	if err != nil || len(waiting) == 0 {
		return err
	}
	held, err := outbox.Admin{Store: messages}.List(ctx, store.OutgoingQuery{State: store.Held, Limit: countUpTo, Bodiless: true})
	if err != nil {
		return err
	}
	oldest := make(map[string]time.Duration) // by topic
	for _, m := range held {
		if m.Reason != "" { // else it only waits for an earlier one of its ordering key
			oldest[m.Message.Topic] = max(oldest[m.Message.Topic], time.Since(m.Created))
		}
	}
	var full []string
	for _, topic := range slices.Sorted(maps.Keys(oldest)) {
		var mayBe []string
		for _, q := range waiting {
			if slices.Contains(q.topics, topic) {
				mayBe = append(mayBe, q.String())
			}
		}
		if len(mayBe) > 0 {
			full = append(full, fmt.Sprintf("%s waits for %s, with a message put %s", show.Line(topic),
				strings.Join(mayBe, " or "), show.Ago(oldest[topic])))
		}
	}
	if len(full) > 0 {
		e.found("queue-full", Warning, "Topics wait for queues that may be full: "+strings.Join(full, "; ")+".",
			"While one of the queues of a topic is full, its messages reach none of its consumers. They wait in the outbox.",
			"Start these consumers, or more of them. If one is gone for good: once consumers retire --discard. "+
				"The reason of the messages is in once outbox peek --state held.")
	}
	return nil
}
