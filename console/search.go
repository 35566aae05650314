package console

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// A page finds messages in bounded work, however many there are. Few messages are
// read, and compared here. Of many, those on the shelf are found by the index on
// their consumer and id. The outbox has no such index, for which each producer would
// pay: all of it is read only for people who ask for that.
const (
	fewMessages   = 250                   // of each state
	mostConsumers = 200                   // that are tried
	glanceTime    = 80 * time.Millisecond // for reading records, unless people ask for more
)

// all reports whether a request asks for what takes long.
func (v *view) all() bool { return v.r.URL.Query().Get("scan") == "1" }

// readUntil is when a page ends to read records one after the other.
func (v *view) readUntil() time.Time {
	if v.all() {
		return v.now().Add(scanTime)
	}
	return v.begun.Add(glanceTime)
}

// onShelf returns messages with any of some ids. whole is false if there may be
// others.
func (v *view) onShelf(ctx context.Context, s Store, shelf store.Shelf, ids []string, limit int) (found []store.Shelved, whole bool, err error) {
	some, err := guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) {
		return shelf.Shelved(ctx, store.ShelfQuery{Limit: fewMessages, NoQueued: true, Bodiless: true})
	})
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
		found, err = guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) {
			return shelf.Shelved(ctx, store.ShelfQuery{IDs: ids, Limit: limit, NoQueued: true, Bodiless: true})
		})
		return found, len(found) < limit, err
	}
	consumers, err := guarded(ctx, v.Console, s.Name, func() ([]store.Consumer, error) { return registry.Consumers(ctx) })
	if err != nil {
		return nil, false, err
	}
	var names []string
	for _, c := range consumers {
		if c.Name != "" { // else its row cannot be read
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	whole = len(names) <= mostConsumers
	found, err = each(names[:min(len(names), mostConsumers)], func(name string) ([]store.Shelved, error) {
		return guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) {
			return shelf.Shelved(ctx, store.ShelfQuery{Consumer: name, IDs: ids, Limit: limit, Bodiless: true})
		})
	})
	slices.SortFunc(found, func(a, b store.Shelved) int { return int(a.Seq - b.Seq) })
	return found, whole && len(found) < limit, err
}

// inOutbox returns messages with an id, or with a cause. whole is false if there may
// be others.
func (v *view) inOutbox(ctx context.Context, s Store, out store.Relayable, q store.OutgoingQuery) (found []store.Outgoing, whole bool, err error) {
	whole = true
	for state := store.Pending; state <= store.Published; state++ {
		some, err := guarded(ctx, v.Console, s.Name, func() ([]store.Outgoing, error) {
			return out.Outgoing(ctx, store.OutgoingQuery{State: state, Limit: fewMessages, Bodiless: true})
		})
		if err != nil {
			return found, false, err
		}
		if len(some) == fewMessages {
			if !v.all() {
				whole = false
			} else {
				q.State, q.Bodiless = state, true
				if some, err = guarded(ctx, v.Console, s.Name, func() ([]store.Outgoing, error) { return out.Outgoing(ctx, q) }); err != nil {
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
func (v *view) outgoingAt(ctx context.Context, s Store, out store.Relayable, id string, seq int64) (*store.Outgoing, error) {
	for state := store.Pending; state <= store.Published; state++ {
		some, err := guarded(ctx, v.Console, s.Name, func() ([]store.Outgoing, error) {
			return outbox.Admin{Store: out}.List(ctx, store.OutgoingQuery{State: state, After: seq - 1, Limit: store.Lanes}) // each lane may have the number
		})
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
func (v *view) tracesOf(ctx context.Context, s Store, r once.Record) (found store.Traces, whole bool, err error) {
	lister, ok := once.As[once.Lister](s.Store)
	if !ok {
		found, err = guarded(ctx, v.Console, s.Name, func() (store.Traces, error) { return store.FindTraces(ctx, s.Store, r, maxTraces) })
		return found, true, err
	}
	found, err = guarded(ctx, v.Console, s.Name, func() (store.Traces, error) { return store.FindTraces(ctx, recordsOnly{s.Store, lister}, r, maxTraces) })
	out, ok := once.As[store.Relayable](s.Store)
	if err != nil || !ok {
		return found, true, err
	}
	found.Put, whole, err = v.inOutbox(ctx, s, out, store.OutgoingQuery{Cause: store.FormatCause(r.Key), Limit: maxTraces})
	if len(found.Put) == maxTraces {
		found.Cut, whole = true, true
	}
	return found, whole, err
}

// unreadIn is the note that not all messages of a store were searched. The link is for
// people who want that.
func unreadIn(of, what, link string) note {
	return note{Text: of + " has many messages, and not all of them were searched for " + what + ".", More: link, MoreText: "Search all of them"}
}

// inPage is how many messages are read at once where they are compared here.
const inPage = 1000

// messageList is a part of a list of messages. last is the number of the last one that was
// read. more reports that there may be others after it, and cut that the time was
// over before the page was full.
type messageList[M any] struct {
	found     []M
	last      int64
	more, cut bool
}

// sieve selects the messages of a list that no index of a store selects.
type sieve[M any] struct {
	next  func(after int64) ([]M, error)
	seq   func(M) int64
	match func(M) bool

	// alike is the ID of the only group of failures that the list has, or empty.
	alike  string
	reason func(M) string

	// survey counts the failures of the first messages that match, of any group.
	// Default: nothing.
	survey *survey
	counts func(M) (consumer string, changed time.Time)
}

// keep counts a message that matches, and reports whether the list has it.
func (s *sieve[M]) keep(m M) bool {
	if !s.survey.isOpen() {
		return s.alike == "" || alike.ID(alike.Text(s.reason(m))) == s.alike
	}
	consumer, changed := s.counts(m)
	id := s.survey.Add(s.reason(m), consumer, changed)
	return s.alike == "" || id == s.alike
}

// sift reads messages page by page, and keeps those that match, until a page of the
// console is full or the time is over. If it counts failures, it reads on for them.
func sift[M any](v *view, after int64, s sieve[M]) (l messageList[M], err error) {
	l.last = after
	for end := v.readUntil(); ; {
		some, err := s.next(after)
		if err != nil {
			return l, err
		}
		for _, m := range some {
			if !s.match(m) || !s.keep(m) {
				continue
			}
			if len(l.found) < messagesOnPage {
				l.found = append(l.found, m)
			} else if !l.more {
				l.last, l.more = s.seq(l.found[messagesOnPage-1]), true
			}
			if l.more && !s.survey.isOpen() {
				return l, nil
			}
		}
		if len(some) < inPage || l.more && !s.survey.isOpen() {
			return l, nil
		}
		after = s.seq(some[len(some)-1])
		if !l.more {
			l.last = after
		}
		if v.now().After(end) {
			s.survey.end()
			if !l.more {
				l.more, l.cut = true, len(l.found) < messagesOnPage
			}
			return l, nil
		}
	}
}

// survey counts the failures of the first messages of a list. A nil one counts nothing.
type survey struct {
	alike.Groups
	Cut bool // there may be others
}

// maxSurvey bounds what a survey costs.
const maxSurvey = 1000

// isOpen reports whether further messages are to be counted.
func (s *survey) isOpen() bool {
	if s == nil || s.Cut {
		return false
	}
	s.Cut = s.Count >= maxSurvey
	return !s.Cut
}

// end says that not all messages were read.
func (s *survey) end() {
	if s != nil {
		s.Cut = true
	}
}

// shelfList is a page of a list of the shelf. No index has the topic of a message, its
// reason, or its ordering key or id without its consumer. The survey may be nil.
func (v *view) shelfList(ctx context.Context, s Store, shelf inbox.AdminStore, q store.ShelfQuery, group string, failures *survey) (l messageList[store.Shelved], err error) {
	inOrder := q.OrderingKey == "" || q.Consumer != ""
	switch {
	case q.Topic == "" && inOrder && (len(q.IDs) == 0 || q.Consumer != "") && group == "" && failures == nil:
		q.Limit = messagesOnPage + 1
		l.found, err = guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) { return inbox.Admin{Store: shelf}.List(ctx, q) })
		if l.more = len(l.found) > messagesOnPage; l.more {
			l.found = l.found[:messagesOnPage]
		}
	case len(q.IDs) > 0 && q.Consumer == "" && !v.all():
		all, whole, err := v.onShelf(ctx, s, shelf, q.IDs, onPage)
		if err != nil {
			return l, err
		}
		for _, m := range all {
			m = store.OpenShelved(&s.Store.Options().Sealing, m, true)
			if m.Seq > q.After && slices.Contains(q.States, m.State) && (q.Topic == "" || m.Message.Topic == q.Topic) && (q.OrderingKey == "" || m.Message.OrderingKey == q.OrderingKey) &&
				(group == "" || alike.ID(alike.Text(m.Reason)) == group) {
				l.found = append(l.found, m)
			}
		}
		if l.cut = !whole; l.cut {
			l.more, l.last = true, q.After
			return l, nil
		}
	default:
		topic, order, ids := q.Topic, q.OrderingKey, q.IDs
		q.Topic, q.Limit = "", inPage
		if q.Consumer == "" {
			q.OrderingKey, q.IDs = "", nil
		}
		return sift(v, q.After, sieve[store.Shelved]{
			next: func(after int64) ([]store.Shelved, error) {
				q.After = after
				return guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) { return withReasons(ctx, s, shelf, q) })
			},
			seq: func(m store.Shelved) int64 { return m.Seq },
			match: func(m store.Shelved) bool {
				return (topic == "" || m.Message.Topic == topic) && (order == "" || m.Message.OrderingKey == order) && (len(ids) == 0 || slices.Contains(ids, m.Message.ID))
			},
			alike: group, reason: func(m store.Shelved) string { return m.Reason },
			survey: failures, counts: func(m store.Shelved) (string, time.Time) { return m.Consumer, m.Updated },
		})
	}
	if n := len(l.found); n > 0 {
		l.last = l.found[n-1].Seq
	}
	return l, err
}

// withReasons returns messages of which only the reasons are opened. A list does not
// show histories: opening those of all messages that it compares took seconds.
func withReasons(ctx context.Context, s Store, shelf store.Shelf, q store.ShelfQuery) ([]store.Shelved, error) {
	found, err := shelf.Shelved(ctx, q)
	for i := range found {
		found[i] = store.OpenShelved(&s.Store.Options().Sealing, found[i], true)
	}
	return found, err
}

// outboxList is a page of a list of the outbox, which has no index for what a list is
// filtered by. The survey may be nil.
func (v *view) outboxList(ctx context.Context, s Store, messages store.Relayable, q store.OutgoingQuery, group string, failures *survey) (l messageList[store.Outgoing], err error) {
	of := q
	q.IDs, q.Topic, q.OrderingKey, q.Limit = nil, "", "", inPage
	if len(of.IDs) == 0 && of.Topic == "" && of.OrderingKey == "" && group == "" && failures == nil {
		q.Limit = messagesOnPage + 1
		l.found, err = guarded(ctx, v.Console, s.Name, func() ([]store.Outgoing, error) { return outbox.Admin{Store: messages}.List(ctx, q) })
		if l.more = len(l.found) > messagesOnPage; l.more {
			l.found = l.found[:messagesOnPage]
		}
		if n := len(l.found); n > 0 {
			l.last = l.found[n-1].Seq
		}
		return l, err
	}
	return sift(v, q.After, sieve[store.Outgoing]{
		next: func(after int64) ([]store.Outgoing, error) {
			q.After = after
			return guarded(ctx, v.Console, s.Name, func() ([]store.Outgoing, error) { return outbox.Admin{Store: messages}.List(ctx, q) })
		},
		seq: func(m store.Outgoing) int64 { return m.Seq },
		match: func(m store.Outgoing) bool {
			return (of.Topic == "" || m.Message.Topic == of.Topic) && (of.OrderingKey == "" || m.Message.OrderingKey == of.OrderingKey) &&
				(len(of.IDs) == 0 || slices.Contains(of.IDs, m.Message.ID))
		},
		alike: group, reason: func(m store.Outgoing) string { return m.Reason },
		survey: failures, counts: func(m store.Outgoing) (string, time.Time) { return "", changedAt(m) },
	})
}

// changedAt is when the state of a message last changed: when it was put, if never.
func changedAt(m store.Outgoing) time.Time {
	if m.Changed.IsZero() {
		return m.Created
	}
	return m.Changed
}
