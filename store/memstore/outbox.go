package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// outbox has the messages and the lanes. A message gets its Seq when it is put,
// and enters its lane at the commit, so one with a lower Seq may come later.
type outbox struct {
	lanes  [store.Lanes][]*outgoing // each by Seq
	leases [store.Lanes]lease
	alive  map[[16]byte]time.Time // until when each relay is alive
	ears   map[*ear]bool
	seq    int64 // the last that was assigned
}

// outgoing is a message in the outbox. It has a due time in place of its Delay.
type outgoing struct {
	store.Outgoing
	due     time.Time // of Delayed
	decided time.Time // when a person made it Held or Stuck; zero: a relay did
}

// gone is the state of messages that sweep removes.
const gone store.OutgoingState = -1

// at returns a copy of the message for a reader.
func (m *outgoing) at(now time.Time, bodiless bool) store.Outgoing {
	is := m.Outgoing
	if is.State == store.Delayed {
		is.Delay = m.due.Sub(now)
	}
	if bodiless {
		is.Message.Body, is.Message.Header = nil, nil
	}
	is.Message.Body, is.Message.Header = bytes.Clone(is.Message.Body), maps.Clone(is.Message.Header)
	return is
}

// become sets the state, and for Delayed the due time.
func (m *outgoing) become(to store.OutgoingState, now time.Time, delay time.Duration) {
	m.State, m.Changed, m.decided = to, now, time.Time{}
	if to == store.Delayed {
		m.due = now.Add(delay)
	}
}

// PutTx writes copies of messages in the caller's transaction.
func (s *Store) PutTx(ctx context.Context, tx *Tx, ms []store.Outgoing) error {
	put := make([]*outgoing, len(ms))
	for i := range ms {
		if err := ms[i].Message.Check(); err != nil {
			return fmt.Errorf("%w: %w", once.ErrInvalid, err)
		}
		put[i] = newOutgoing(ms[i])
	}
	return s.within(ctx, tx, func(now time.Time) error {
		for _, m := range put {
			s.outbox.seq++
			m.Seq, m.Created, m.due = s.outbox.seq, now, now.Add(m.Delay)
			m.Delay = 0
		}
		tx.put = append(tx.put, put...)
		return nil
	})
}

func newOutgoing(m store.Outgoing) *outgoing {
	is := &outgoing{Outgoing: store.Outgoing{Message: m.Message, Delay: m.Delay, Cause: m.Cause,
		Lane: store.Lane(&m.Message)}}
	is.Message.Attempt = 0
	is.Message.Body, is.Message.Header = bytes.Clone(m.Message.Body), maps.Clone(m.Message.Header)
	if m.Delay > 0 {
		is.State = store.Delayed
	}
	return is
}

// add adds the messages of a transaction that commits. Their places are at the
// end of their lanes, or close to it.
func (o *outbox) add(put []*outgoing) {
	for _, m := range put {
		lane := o.lanes[m.Lane]
		at := len(lane)
		for at > 0 && lane[at-1].Seq > m.Seq {
			at--
		}
		o.lanes[m.Lane] = slices.Insert(lane, at, m)
	}
	if len(put) > 0 {
		o.ring()
	}
}

// find returns the row of a message if it is still in its State.
func (o *outbox) find(m store.Outgoing) *outgoing {
	if m.Lane < 0 || m.Lane >= store.Lanes {
		return nil
	}
	lane := o.lanes[m.Lane]
	at := sort.Search(len(lane), func(i int) bool { return lane[i].Seq >= m.Seq })
	if at == len(lane) || lane[at].Seq != m.Seq || lane[at].State != m.State {
		return nil
	}
	return lane[at]
}

// sweep removes messages that are gone from the lanes of these messages.
func (o *outbox) sweep(ms []store.Outgoing) {
	var swept [store.Lanes]bool
	for _, m := range ms {
		if m.Lane >= 0 && m.Lane < store.Lanes && !swept[m.Lane] {
			swept[m.Lane] = true
			o.sweepLane(m.Lane)
		}
	}
}

func (o *outbox) sweepLane(lane int) {
	o.lanes[lane] = slices.DeleteFunc(o.lanes[lane], func(m *outgoing) bool { return m.State == gone })
}

// inOrder returns the messages of some lanes, or of all, by Seq.
func (o *outbox) inOrder(lanes []int) iter.Seq[*outgoing] {
	var left [store.Lanes][]*outgoing
	for lane := range left {
		if len(lanes) == 0 || slices.Contains(lanes, lane) {
			left[lane] = o.lanes[lane]
		}
	}
	return func(yield func(*outgoing) bool) {
		for {
			next := -1
			for lane, ms := range left {
				if len(ms) > 0 && (next < 0 || ms[0].Seq < left[next][0].Seq) {
					next = lane
				}
			}
			if next < 0 || !yield(left[next][0]) {
				return
			}
			left[next] = left[next][1:]
		}
	}
}

const largestChunk = 20_000

// Outgoing returns committed messages.
func (s *Store) Outgoing(ctx context.Context, q store.OutgoingQuery) (page []store.Outgoing, err error) {
	if err := checkLanes(q.Lanes); err != nil {
		return nil, err
	}
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestChunk)
	err = s.do(ctx, func(now time.Time) error {
		bodies, headed := 0, make(map[string]bool) // ordering keys of the messages so far
		for m := range s.outbox.inOrder(q.Lanes) {
			if m.State != q.State {
				continue
			}
			key := m.Message.OrderingKey
			behind := q.Heads && key != "" && headed[key]
			if q.Heads {
				headed[key] = true
			}
			if behind || !leaves(q, m) {
				continue
			}
			bodies += len(m.Message.Body)
			if len(page) == limit || q.MaxBytes > 0 && len(page) > 0 && bodies > q.MaxBytes {
				break
			}
			page = append(page, m.at(now, q.Bodiless))
		}
		return nil
	})
	return page, err
}

// leaves reports whether a query selects a message. It does not check State,
// Lanes and Heads.
func leaves(q store.OutgoingQuery, m *outgoing) bool {
	return m.Seq > q.After && (q.OrderingKey == "" || q.OrderingKey == m.Message.OrderingKey) &&
		(q.Topic == "" || q.Topic == m.Message.Topic) && (q.Cause == "" || q.Cause == m.Cause) &&
		(len(q.IDs) == 0 || slices.Contains(q.IDs, m.Message.ID))
}

// Sent ends messages that were published. There is no archive, so store.Archive
// deletes.
func (s *Store) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	if err := checkEnding(then); err != nil {
		return 0, err
	}
	return s.changeOutgoing(ctx, relay, ms, func(row *outgoing, _ store.Outgoing, now time.Time) { row.end(then, now) })
}

func checkEnding(then store.Ending) error {
	if then < store.Delete || then > store.Archive {
		return fmt.Errorf("%w: a message that was published has no ending %d", once.ErrInvalid, then)
	}
	return nil
}

// end ends a message that was published. There is no archive.
func (m *outgoing) end(then store.Ending, now time.Time) {
	if then == store.Keep {
		m.become(store.Published, now, 0)
	} else {
		m.State = gone
	}
}

// MoveOutgoing changes the state of messages, and writes their Attempts and
// Reason.
func (s *Store) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	to store.OutgoingState) (int, error) {

	if err := checkMoved(ms, to); err != nil {
		return 0, err
	}
	return s.changeOutgoing(ctx, relay, ms, func(row *outgoing, m store.Outgoing, now time.Time) {
		row.Attempts, row.Reason = m.Attempts, m.Reason
		row.become(to, now, m.Delay)
		if relay == [16]byte{} {
			row.decided = now
		}
	})
}

// DecidedOutgoing returns the messages that people made Held or Stuck lately.
func (s *Store) DecidedOutgoing(ctx context.Context, onlyStuck bool) (ms []store.Outgoing, err error) {
	err = s.do(ctx, func(now time.Time) error {
		for m := range s.outbox.inOrder(nil) {
			waits := m.State == store.Held && !onlyStuck || m.State == store.Stuck
			if waits && !m.decided.IsZero() && now.Sub(m.decided) < store.DecisionTime {
				ms = append(ms, m.at(now, true))
			}
		}
		return nil
	})
	return ms, err
}

// RemoveOutgoing deletes messages in any state.
func (s *Store) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (int, error) {
	return s.changeOutgoing(ctx, relay, ms, func(row *outgoing, _ store.Outgoing, _ time.Time) { row.State = gone })
}

// changeOutgoing changes the rows of messages that are still in their State, in
// lanes in which relay may.
func (s *Store) changeOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	change func(row *outgoing, m store.Outgoing, now time.Time)) (changed int, err error) {

	err = s.do(ctx, func(now time.Time) error {
		for _, m := range ms {
			if row := s.outbox.find(m); row != nil && s.outbox.mayChange(relay, m.Lane) {
				change(row, m, now)
				changed++
			}
		}
		s.outbox.sweep(ms)
		return nil
	})
	return changed, err
}

// WakeDelayed changes the state of Delayed messages that are due, the longest
// due first.
func (s *Store) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState,
	limit int) (woken int, next time.Duration, err error) {

	if err := checkMoved(nil, to); err != nil {
		return 0, 0, err
	}
	next = time.Hour
	err = s.do(ctx, func(now time.Time) error {
		delayed := s.outbox.delayedFor(relay)
		slices.SortStableFunc(delayed, func(a, b *outgoing) int { return a.due.Compare(b.due) })
		for woken < min(limit, len(delayed)) && !now.Before(delayed[woken].due) {
			delayed[woken].become(to, now, 0)
			woken++
		}
		if woken < len(delayed) {
			next = min(next, delayed[woken].due.Sub(now))
		}
		return nil
	})
	return woken, next, err
}

func (o *outbox) delayedFor(relay [16]byte) (delayed []*outgoing) {
	for i, lane := range o.lanes {
		if !o.mayChange(relay, i) {
			continue
		}
		for _, m := range lane {
			if m.State == store.Delayed {
				delayed = append(delayed, m)
			}
		}
	}
	return delayed
}

// ForgetOutgoing deletes Published messages that were published longer ago than
// keep.
func (s *Store) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: ForgetOutgoing with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	err = s.do(ctx, func(now time.Time) error {
		for lane := range s.outbox.lanes {
			for _, m := range s.outbox.lanes[lane] {
				if forgotten < limit && m.State == store.Published && now.Sub(m.Changed) > keep {
					m.State = gone
					forgotten++
				}
			}
			s.outbox.sweepLane(lane)
		}
		return nil
	})
	return forgotten, err
}

// OutboxDepth returns how many messages are in each state except Published. It
// counts exactly.
func (s *Store) OutboxDepth(ctx context.Context, _ int) (depths []store.Depth, err error) {
	var all [store.Published]store.Depth
	err = s.do(ctx, func(now time.Time) error {
		for _, m := range slices.Concat(s.outbox.lanes[:]...) {
			if m.State < store.Published {
				d := &all[m.State]
				d.Count++
				d.Oldest = max(d.Oldest, now.Sub(m.Created))
			}
		}
		return nil
	})
	for state, d := range all {
		if d.State = store.OutgoingState(state); d.Count > 0 {
			depths = append(depths, d)
		}
	}
	return depths, err
}

func checkMoved(ms []store.Outgoing, to store.OutgoingState) error {
	if to < store.Pending || to > store.Published {
		return fmt.Errorf("%w: a message in the outbox has no state %d", once.ErrInvalid, to)
	}
	for _, m := range ms {
		if len(m.Reason) > longestText {
			return fmt.Errorf("%w: the Reason of message %.40q has %d bytes, the limit is %d: shorten it",
				once.ErrInvalid, m.Message.ID, len(m.Reason), longestText)
		}
	}
	return nil
}

func checkLanes(lanes []int) error {
	for _, lane := range lanes {
		if lane < 0 || lane >= store.Lanes {
			return fmt.Errorf("%w: there is no lane %d: they are from 0 to %d", once.ErrInvalid, lane, store.Lanes-1)
		}
	}
	return nil
}
