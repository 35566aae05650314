package cas

import (
	"cmp"
	"context"
	"slices"

	"github.com/effectively-once/once/store"
)

// largestChunk is how many messages a query may return.
const largestChunk = 20_000

// Outgoing returns committed messages.
func (p *Publishing[Tx]) Outgoing(ctx context.Context, q store.OutgoingQuery) (page []store.Outgoing, err error) {
	if err := checkLanes(q.Lanes); err != nil {
		return nil, err
	}
	now, err := p.Transactions.now(ctx)
	if err != nil {
		return nil, err
	}
	r := &reading[Tx]{Publishing: p, q: q, limit: min(cmp.Or(max(q.Limit, 0), defaultPage), largestChunk),
		headed: make(map[string]bool), known: make(map[place]bool), waiting: make(map[string]bool)}
	for lane := range store.Lanes {
		if len(q.Lanes) == 0 || slices.Contains(q.Lanes, lane) {
			r.lanes = append(r.lanes, &laneReader{prefix: queue(lane, q.State)})
		}
	}
	if q.State < store.Pending || q.State > store.Published {
		return nil, nil
	}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	found, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		page = append(page, f.message.outgoing(f.place, now, q.Bodiless))
	}
	return page, nil
}

// reading is one query.
type reading[Tx any] struct {
	*Publishing[Tx]
	q     store.OutgoingQuery
	limit int
	lanes []*laneReader
	back  *stored // what next returns next; nil: the next one of the lanes

	headed  map[string]bool // with Heads: the ordering keys of the messages so far
	known   map[place]bool  // the messages so far, by inKey
	waiting map[string]bool // ordering keys of messages that were left out
}

// laneReader reads the messages of a lane, by Seq.
type laneReader struct {
	prefix, after string
	page          []stored
	ended         bool
}

// stored is a message that was read.
type stored struct {
	place
	at      DocName
	message message
}

// begin reads the first pages of all lanes.
func (r *reading[Tx]) begin(ctx context.Context) error {
	isKnown := r.mean.Load() > 0
	err := inParallel(len(r.lanes), func(i int) error {
		l := r.lanes[i]
		if r.q.State == store.Delayed {
			return r.readAll(ctx, l)
		}
		if r.q.After > 0 && !r.q.Heads {
			at, err := placeOf(DocName{Name: l.prefix + "0"})
			if err != nil {
				return err
			}
			at.seq = r.q.After
			l.after = at.name(0)
		}
		return r.more(ctx, l)
	})
	if err != nil || isKnown {
		return err
	}
	return inParallel(len(r.lanes), func(i int) error { // the first pages were small
		if r.lanes[i].ended {
			return nil
		}
		return r.more(ctx, r.lanes[i])
	})
}

// size returns how many messages a page of a lane has.
func (r *reading[Tx]) size() int {
	const least = 16
	lanes := max(len(r.lanes), 1)
	return r.pageSize(max(least, r.limit/lanes+1), cmp.Or(max(r.q.MaxBytes, 0), maxRead)/lanes)
}

// maxRead is about how many bytes of messages are read at once.
const maxRead = 16 << 20

// pageSize returns how many messages may be read, up to a limit, if they are to have
// about this many bytes. While it is not known how large they are, these are two.
func (p *Publishing[Tx]) pageSize(limit, bytes int) int {
	few := 2
	if mean := int(p.mean.Load()); mean > 0 {
		few = max(few, bytes/mean+1)
	}
	return min(limit, few, largestPage)
}

// more reads the next page of a lane.
func (r *reading[Tx]) more(ctx context.Context, l *laneReader) error {
	docs, last, err := r.page(ctx, l.prefix, l.after, r.size())
	if err != nil {
		return err
	}
	l.after, l.ended = last, last == ""
	for _, doc := range docs {
		at, err := placeOf(doc.DocName)
		if err != nil {
			continue // nobody can name it
		}
		is := readMessage(at, doc)
		if r.q.Bodiless && r.q.MaxBytes <= 0 {
			is.body, is.Header = nil, nil
		}
		l.page = append(l.page, stored{at, doc.DocName, is})
		r.seen.saw(at, doc)
	}
	return nil
}

// readAll reads all of a lane that is not in the order of Seq, and keeps what may be
// in the page of the query.
func (r *reading[Tx]) readAll(ctx context.Context, l *laneReader) error {
	for !l.ended {
		if err := r.more(ctx, l); err != nil {
			return err
		}
		slices.SortFunc(l.page, func(a, b stored) int { return cmp.Compare(a.seq, b.seq) })
		if !r.q.Heads {
			l.page = slices.DeleteFunc(l.page, func(is stored) bool { return !r.selects(&is) })
			l.page = slices.Delete(l.page, min(len(l.page), r.limit+1), len(l.page))
		}
	}
	return nil
}

// next returns the message with the lowest Seq of all lanes, or nil if there are
// no more.
func (r *reading[Tx]) next(ctx context.Context) (*stored, error) {
	if is := r.back; is != nil {
		r.back = nil
		return is, nil
	}
	var first *laneReader
	for _, l := range r.lanes {
		for len(l.page) == 0 && !l.ended {
			if err := r.more(ctx, l); err != nil {
				return nil, err
			}
		}
		if len(l.page) > 0 && (first == nil || l.page[0].seq < first.page[0].seq) {
			first = l
		}
	}
	if first == nil {
		return nil, nil
	}
	is := &first.page[0]
	first.page = first.page[1:]
	return is, nil
}

// maxReads is how many pages are read if all messages of a page wait for others.
const maxReads = 10

// read returns the messages that the query selects.
func (r *reading[Tx]) read(ctx context.Context) (page []stored, err error) {
	for reads := 0; len(page) == 0 && reads < maxReads; reads++ {
		all, more, err := r.readPage(ctx)
		if err != nil {
			return nil, err
		}
		if page = all; r.Lags && len(r.q.HeldBy) > 0 {
			if page, err = r.inOrder(ctx, all); err != nil {
				return nil, err
			}
		}
		if !more {
			break
		}
	}
	return page, nil
}

// readPage returns what fits into a page, and whether there is more.
func (r *reading[Tx]) readPage(ctx context.Context) (page []stored, more bool, err error) {
	for bodies := 0; ; {
		is, err := r.next(ctx)
		if err != nil || is == nil {
			return page, false, err
		}
		m := &is.message
		isLater := r.q.Heads && m.Order != "" && r.headed[m.Order]
		selected := !isLater && r.selects(is)
		if selected {
			bodies += len(m.body)
			if len(page) == r.limit || r.q.MaxBytes > 0 && len(page) > 0 && bodies > r.q.MaxBytes {
				r.back = is
				return page, true, nil
			}
			page = append(page, *is)
		}
		if r.q.Heads {
			r.headed[m.Order] = true
		}
	}
}

// selects reports whether the query selects a message. It does not check State,
// Lanes and Heads.
func (r *reading[Tx]) selects(is *stored) bool {
	q, m := &r.q, &is.message
	return is.seq > q.After && (q.OrderingKey == "" || q.OrderingKey == m.Order) && (q.Topic == "" || q.Topic == m.Topic) &&
		(q.Cause == "" || q.Cause == string(m.Cause)) && (len(q.IDs) == 0 || slices.Contains(q.IDs, m.ID))
}

// inOrder leaves out messages whose ordering key has an earlier one that was not
// read, because Queued is behind, and is in a state of HeldBy. It shows up soon.
func (r *reading[Tx]) inOrder(ctx context.Context, page []stored) ([]stored, error) {
	for _, is := range page {
		r.known[is.inKey()] = true
	}
	waits := make([]bool, len(page))
	err := inParallel(len(page), func(i int) error {
		before := page[i].message.Before
		if before == nil || r.waiting[page[i].message.Order] {
			return nil
		}
		at, err := placeOf(*before)
		if err != nil || r.known[at] {
			return err
		}
		state, isThere, err := r.stateOf(ctx, *before, at)
		waits[i] = isThere && slices.Contains(r.q.HeldBy, state)
		return err
	})
	kept := page[:0]
	for i, is := range page {
		key := is.message.Order
		if waits[i] {
			r.waiting[key] = true
		}
		if !r.waiting[key] {
			kept = append(kept, is)
		}
	}
	return kept, err
}

// inKey is the place of a message among those of its ordering key, which does not
// depend on its state.
func (s *stored) inKey() place {
	at := s.place
	at.state = store.Pending
	return at
}

// stateOf returns the state of a message that was Pending at first. isThere is
// false if it was ended.
func (r *reading[Tx]) stateOf(ctx context.Context, first DocName, at place) (state store.OutgoingState, isThere bool, err error) {
	if is, _ := r.seen.of(at); is.fate == ended {
		return 0, false, nil
	}
	pending := at
	// A person may have replayed a Stuck message, so that it was neither Held before
	// nor Stuck after.
	for _, at.state = range []store.OutgoingState{store.Pending, store.Held, store.Stuck, store.Held} {
		doc, err := r.Queue.LoadDoc(ctx, DocName{first.Place, at.name(0)})
		if err != nil || doc.Version != "" {
			return at.state, err == nil, err
		}
	}
	r.seen.end(pending, first, "", ended)
	return 0, false, nil
}
