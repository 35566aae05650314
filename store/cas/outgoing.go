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
	r := &reading[Tx]{Publishing: p, q: q, limit: min(cmp.Or(max(q.Limit, 0), defaultPage), largestChunk)}
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
	if err == nil && p.Lags && r.fromTheFirst() {
		found, err = r.inOrder(ctx, found)
	}
	for _, f := range found {
		page = append(page, f.message.outgoing(f.place, now, q.Bodiless))
	}
	return page, err
}

// reading is one query.
type reading[Tx any] struct {
	*Publishing[Tx]
	q     store.OutgoingQuery
	limit int
	size  int // of a page of a lane
	lanes []*laneReader
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

// fromTheFirst reports whether the query reads what is published next.
func (r *reading[Tx]) fromTheFirst() bool {
	q := &r.q
	return q.State == store.Pending && (q.After <= 0 || q.Heads) && q.Topic == "" && q.OrderingKey == "" && q.Cause == "" && len(q.IDs) == 0
}

// begin reads the first pages of all lanes.
func (r *reading[Tx]) begin(ctx context.Context) error {
	const least = 16
	r.size = max(least, r.limit/max(len(r.lanes), 1)+1)
	if mean := int(r.mean.Load()); r.q.MaxBytes > 0 && mean > 0 {
		r.size = min(r.size, max(r.q.MaxBytes/mean/max(len(r.lanes), 1)+1, 2))
	}
	r.size = min(r.size, largestPage)
	return inParallel(len(r.lanes), func(i int) error {
		l := r.lanes[i]
		if r.q.State == store.Delayed {
			return r.readAll(ctx, l)
		}
		if r.q.After > 0 && !r.q.Heads {
			at, err := placeOf(l.prefix + "0")
			if err != nil {
				return err
			}
			at.seq = r.q.After
			l.after = at.name(0)
		}
		return r.more(ctx, l)
	})
}

// more reads the next page of a lane.
func (r *reading[Tx]) more(ctx context.Context, l *laneReader) error {
	docs, last, err := r.page(ctx, l.prefix, l.after, r.size)
	if err != nil {
		return err
	}
	l.after, l.ended = last, last == ""
	bytes := 0
	for _, doc := range docs {
		at, err := placeOf(doc.Name)
		if err != nil {
			return err
		}
		is, err := readMessage(doc.DocName, doc.Text)
		if err != nil {
			return err
		}
		bytes += len(doc.Text)
		l.page = append(l.page, stored{at, doc.DocName, is})
		r.seen.keep(at, remembered{at: doc.DocName, version: doc.Version})
	}
	if len(docs) > 0 {
		r.mean.Store(int64(bytes / len(docs)))
	}
	return nil
}

// readAll reads all of a lane that is not in the order of Seq.
func (r *reading[Tx]) readAll(ctx context.Context, l *laneReader) error {
	for !l.ended {
		if err := r.more(ctx, l); err != nil {
			return err
		}
	}
	slices.SortFunc(l.page, func(a, b stored) int { return cmp.Compare(a.seq, b.seq) })
	return nil
}

// next returns the message with the lowest Seq of all lanes, or nil if there are
// no more.
func (r *reading[Tx]) next(ctx context.Context) (*stored, error) {
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

// read returns the messages that the query selects.
func (r *reading[Tx]) read(ctx context.Context) (page []stored, err error) {
	bodies, headed := 0, make(map[string]bool) // ordering keys of the messages so far
	for {
		is, err := r.next(ctx)
		if err != nil || is == nil {
			return page, err
		}
		m := &is.message
		isLater := r.q.Heads && m.Order != "" && headed[m.Order]
		if r.q.Heads {
			headed[m.Order] = true
		}
		if isLater || !r.selects(is) {
			continue
		}
		bodies += len(m.body)
		if len(page) == r.limit || r.q.MaxBytes > 0 && len(page) > 0 && bodies > r.q.MaxBytes {
			return page, nil
		}
		page = append(page, *is)
	}
}

// selects reports whether the query selects a message. It does not check State,
// Lanes and Heads.
func (r *reading[Tx]) selects(is *stored) bool {
	q, m := &r.q, &is.message
	return is.seq > q.After && (q.OrderingKey == "" || q.OrderingKey == m.Order) && (q.Topic == "" || q.Topic == m.Topic) &&
		(q.Cause == "" || q.Cause == string(m.Cause)) && (len(q.IDs) == 0 || slices.Contains(q.IDs, m.ID))
}

// inOrder leaves out messages whose ordering key has an earlier one that is
// Pending and was not read, because Queued is behind. It shows up soon.
func (r *reading[Tx]) inOrder(ctx context.Context, page []stored) ([]stored, error) {
	read := make(map[DocName]bool)
	for _, is := range page {
		read[is.at] = true
	}
	waits := make([]bool, len(page))
	err := inParallel(len(page), func(i int) error {
		before := page[i].message.Before
		if before == nil || read[*before] {
			return nil
		}
		at, err := placeOf(before.Name)
		if err != nil {
			return err
		}
		if is, known := r.seen.of(at); known && is.gone {
			return nil
		}
		doc, err := r.Queue.LoadDoc(ctx, *before)
		if err != nil {
			return err
		}
		if waits[i] = doc.Version != ""; !waits[i] {
			r.seen.end(at, *before)
		}
		return nil
	})
	held := make(map[string]bool)
	for i := range page {
		held[page[i].message.Order] = held[page[i].message.Order] || waits[i]
		waits[i] = held[page[i].message.Order] && page[i].message.Order != ""
	}
	kept := page[:0]
	for i, is := range page {
		if !waits[i] {
			kept = append(kept, is)
		}
	}
	return kept, err
}
