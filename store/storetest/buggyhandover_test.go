package storetest_test

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/store"
)

// handOverBugs are seeded bugs in HandOver, each with the cases that must catch it.
var handOverBugs = map[string]string{
	"shelved, then ended":          "outbox/hand-over-fenced outbox/hand-over-race",
	"ended, then shelved":          "outbox/hand-over-invalid",
	"handed over to nobody":        "outbox/hand-over",
	"handed over and kept":         "outbox/hand-over outbox/hand-over-fenced",
	"handed over backwards":        "outbox/hand-over",
	"handed over to the first":     "outbox/hand-over",
	"what is there is not ended":   "outbox/hand-over-again",
	"later ones go ahead":          "outbox/hand-over-order",
	"without a key is a key":       "outbox/hand-over-order",
	"all or none are handed over":  "outbox/hand-over-fenced",
	"handed over, whatever it was": "outbox/hand-over-fenced",
	"looks, then hands over":       "outbox/hand-over-race",
}

func (s *sender) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, rows [][]store.Shelved,
	then store.Ending) (handed []bool, err error) {

	if len(rows) != len(ms) {
		return s.Store.HandOver(ctx, relay, ms, rows, then)
	}
	all := slices.Repeat([]bool{true}, len(ms))
	switch s.bug {
	case "context ignored":
		ctx = context.WithoutCancel(ctx)
	case "shelved, then ended":
		if err := s.Store.Shelve(ctx, slices.Concat(rows...)); err != nil {
			return nil, err
		}
		time.Sleep(10 * time.Millisecond) // which is how long both are there
		for i, m := range ms {
			n, err := s.Store.Sent(ctx, relay, []store.Outgoing{m}, then)
			if all[i] = n == 1; err != nil {
				return nil, err
			}
		}
		return all, nil
	case "ended, then shelved":
		handed, err = s.Store.HandOver(ctx, relay, ms, make([][]store.Shelved, len(ms)), then)
		for i, is := range handed {
			if is && err == nil {
				err = s.Store.Shelve(ctx, rows[i])
			}
		}
		return handed, err
	case "handed over to nobody":
		rows = make([][]store.Shelved, len(ms))
	case "handed over and kept":
		return all, s.Store.Shelve(ctx, slices.Concat(rows...))
	case "handed over backwards":
		ms, rows = slices.Clone(ms), slices.Clone(rows)
		slices.Reverse(ms)
		slices.Reverse(rows)
		handed, err = s.Store.HandOver(ctx, relay, ms, rows, then)
		slices.Reverse(handed)
		return handed, err
	case "handed over to the first":
		rows = slices.Clone(rows)
		for i := range rows {
			rows[i] = rows[i][:min(len(rows[i]), 1)]
		}
	case "what is there is not ended":
		for i, of := range rows {
			q := store.ShelfQuery{Consumer: of[0].Consumer, IDs: []string{of[0].Message.ID}}
			if there, _ := s.Store.Shelved(ctx, q); len(there) > 0 {
				ms, rows = slices.Delete(slices.Clone(ms), i, i+1), slices.Delete(slices.Clone(rows), i, i+1)
				break
			}
		}
	case "later ones go ahead":
		for i := range ms {
			one, err := s.Store.HandOver(ctx, relay, ms[i:i+1], rows[i:i+1], then)
			if err != nil {
				return nil, err
			}
			all[i] = one[0]
		}
		return all, nil
	case "without a key is a key":
		keyed := slices.Clone(ms)
		for i := range keyed {
			if keyed[i].Message.OrderingKey == "" {
				keyed[i].Message.OrderingKey = "none"
			}
		}
		ms = keyed
	case "all or none are handed over":
		for _, m := range ms {
			if s.stateOf(m) != m.State {
				return make([]bool, len(ms)), nil
			}
		}
	case "handed over, whatever it was":
		if _, err := s.Store.HandOver(ctx, relay, ms, rows, then); err != nil {
			return nil, err
		}
		return all, nil
	case "looks, then hands over":
		for i, m := range ms {
			all[i] = s.stateOf(m) == m.State && s.isThere(m)
		}
		s.hesitate()
		_, err := s.Store.HandOver(ctx, relay, ms, rows, then)
		return all, err
	}
	return s.Store.HandOver(ctx, relay, ms, rows, then)
}
