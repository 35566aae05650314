package outbox

import (
	"slices"

	"github.com/effectively-once/once/store"
)

// queue divides a chunk into batches.
type queue struct {
	runs  [][]store.Outgoing // of one ordering key each, or one run of everything if there is no order
	later [][]store.Outgoing // the rests of runs that are in the current batch
	order queueOrder
}

type queueOrder int

const (
	oncePerKey queueOrder = iota // a batch has one message of each ordering key
	overtaking                   // a batch may have several
)

func newQueue(chunk []store.Outgoing, order queueOrder) *queue {
	if order == overtaking && len(chunk) > 0 {
		return &queue{runs: [][]store.Outgoing{chunk}, order: overtaking}
	}
	q := &queue{runs: make([][]store.Outgoing, 0, len(chunk))}
	at := make(map[string]int)
	for i, m := range chunk {
		key := m.Message.OrderingKey
		if k, known := at[key]; known && key != "" {
			q.runs[k] = append(q.runs[k], m)
			continue
		}
		at[key] = len(q.runs)
		q.runs = append(q.runs, chunk[i:i+1:i+1])
	}
	return q
}

// mixTopics puts messages of different topics next to each other, because often
// one topic is the problem.
func (q *queue) mixTopics() {
	nth := make(map[string]int)
	var rounds [][][]store.Outgoing
	for _, run := range q.runs {
		n := nth[run[0].Message.Topic]
		nth[run[0].Message.Topic]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], run)
	}
	q.runs = slices.Concat(rounds...)
}

// rotate makes the queue begin with another run.
func (q *queue) rotate(n int) {
	if len(q.runs) > 0 {
		n %= len(q.runs)
		q.runs = append(q.runs[n:len(q.runs):len(q.runs)], q.runs[:n]...)
	}
}

// next returns a batch of up to limit wanted messages. If a message is not
// wanted, the rest of its run is dropped.
func (q *queue) next(limit int, wanted func(*store.Outgoing) bool) (batch []store.Outgoing) {
	batch = make([]store.Outgoing, 0, min(limit, len(q.runs)))
	for len(batch) < limit && len(q.runs) > 0 {
		run := q.runs[0]
		m := run[0]
		rest := run[1:]
		switch {
		case q.order == overtaking && len(rest) > 0:
			q.runs[0] = rest
		case q.order == overtaking:
			q.runs = nil
		default:
			q.runs = q.runs[1:]
		}
		if !wanted(&m) {
			continue
		}
		batch = append(batch, m)
		if q.order == oncePerKey && len(rest) > 0 {
			q.later = append(q.later, rest)
		}
	}
	if len(q.later) > 0 {
		q.runs, q.later = append(q.runs, q.later...), nil
	}
	return batch
}
