package console

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// A page finds messages in bounded work, however many there are. Few messages are
// read, and compared here. Of many, those on the shelf are found by the index on
// their consumer and id. The outbox has no such index, for which each producer would
// pay: all of it is read only for people who ask for that.
const (
	fewMessages   = 500                    // of each state
	mostConsumers = 200                    // that are tried
	glanceTime    = 100 * time.Millisecond // for reading records, unless people ask for more
)

// all reports whether a request asks for what takes long.
func (v *view) all() bool { return v.r.URL.Query().Get("scan") == "1" }

// patience is how long a page may read records one after the other.
func (v *view) patience() time.Duration {
	if v.all() {
		return scanTime
	}
	return glanceTime
}

// onShelf returns messages with any of some ids. whole is false if there may be
// others.
func (v *view) onShelf(ctx context.Context, s Store, shelf store.Shelf, ids []string, limit int) (found []store.Shelved, whole bool, err error) {
	some, err := shelf.Shelved(ctx, store.ShelfQuery{Limit: fewMessages, Bodiless: true})
	if err != nil {
		return nil, false, err
	}
	if len(some) < fewMessages {
		for _, m := range some {
			if slices.Contains(ids, m.Message.ID) {
				found = append(found, m)
			}
		}
		return found, true, nil
	}
	registry, ok := once.As[store.Registry](s.Store)
	switch {
	case !v.all() && !ok:
		return nil, false, nil
	case v.all():
		found, err = shelf.Shelved(ctx, store.ShelfQuery{IDs: ids, Limit: limit, Bodiless: true})
		return found, len(found) < limit, err
	}
	consumers, err := registry.Consumers(ctx)
	if err != nil {
		return nil, false, err
	}
	var names []string
	for _, c := range consumers {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	whole = len(names) <= mostConsumers
	found, err = each(names[:min(len(names), mostConsumers)], func(name string) ([]store.Shelved, error) {
		return shelf.Shelved(ctx, store.ShelfQuery{Consumer: name, IDs: ids, Limit: limit, Bodiless: true})
	})
	slices.SortFunc(found, func(a, b store.Shelved) int { return int(a.Seq - b.Seq) })
	return found, whole && len(found) < limit, err
}

// inOutbox returns messages with an id, or with a cause. whole is false if there may
// be others.
func (v *view) inOutbox(ctx context.Context, out store.Relayable, q store.OutgoingQuery) (found []store.Outgoing, whole bool, err error) {
	whole = true
	for state := store.Pending; state <= store.Published; state++ {
		some, err := out.Outgoing(ctx, store.OutgoingQuery{State: state, Limit: fewMessages, Bodiless: true})
		if err != nil {
			return found, false, err
		}
		if len(some) == fewMessages {
			if !v.all() {
				whole = false
			} else {
				q.State, q.Bodiless = state, true
				if some, err = out.Outgoing(ctx, q); err != nil {
					return found, false, err
				}
			}
		}
		for _, m := range some {
			if (len(q.IDs) == 0 || slices.Contains(q.IDs, m.Message.ID)) && (q.Cause == "" || m.Cause == q.Cause) && len(found) < q.Limit {
				found = append(found, m)
			}
		}
	}
	return found, whole && len(found) < q.Limit, nil
}

// outgoingAt returns the message of the outbox with a number and an id.
func outgoingAt(ctx context.Context, out store.Relayable, id string, seq int64) (*store.Outgoing, error) {
	for state := store.Pending; state <= store.Published; state++ {
		some, err := outbox.Admin{Store: out}.List(ctx, store.OutgoingQuery{State: state, After: seq - 1, Limit: store.Lanes}) // each lane may have the number
		if err != nil {
			return nil, err
		}
		for i := range some {
			if some[i].Seq == seq && some[i].Message.ID == id {
				return &some[i], nil
			}
		}
	}
	return nil, nil
}

// each calls of for all names, some at once, and returns all results, or an error.
func each[M any](names []string, of func(string) ([]M, error)) (all []M, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, tryAtOnce)
	for _, name := range names {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			some, failed := of(name)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			if err == nil {
				err = failed
			}
		}()
	}
	wg.Wait()
	return all, err
}

// recordsOnly is a store without its outbox.
type recordsOnly struct {
	once.Store
	once.Lister
}

// tracesOf is [store.FindTraces], of which the outbox is searched by inOutbox.
func (v *view) tracesOf(ctx context.Context, s once.Store, r once.Record) (found store.Traces, whole bool, err error) {
	lister, ok := once.As[once.Lister](s)
	if !ok {
		found, err = store.FindTraces(ctx, s, r, maxTraces)
		return found, true, err
	}
	found, err = store.FindTraces(ctx, recordsOnly{s, lister}, r, maxTraces)
	out, ok := once.As[store.Relayable](s)
	if err != nil || !ok {
		return found, true, err
	}
	found.Put, whole, err = v.inOutbox(ctx, out, store.OutgoingQuery{Cause: store.FormatCause(r.Key), Limit: maxTraces})
	if len(found.Put) == maxTraces {
		found.Cut, whole = true, true
	}
	return found, whole, err
}

// unread notes that not all messages were searched. The link is for people who want
// that.
func (v *view) unread(s Store, what, link string) {
	v.notes = append(v.notes, note{Text: s.Name + " has many messages, and not all of them were searched for " + what + ".",
		More: link, MoreText: "Search all of them"})
}
