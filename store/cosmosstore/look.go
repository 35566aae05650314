package cosmosstore

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
)

// looks shares queries for the names of all messages among calls of Queued that
// come at once, because a relay asks for each lane. A call gets the names of a
// query that began after it did.
type looks struct {
	turn chan struct{} // holds one while a query runs

	mu   sync.Mutex
	next *look     // the query that has not begun
	many time.Time // until when there are probably too many names
}

// look is a query for the names of all messages.
type look struct {
	done  chan struct{}
	names []string // sorted
	whole bool     // these are all names
}

// lookAgain is how long calls ask on their own after there were too many names.
const lookAgain = 10 * time.Second

// names returns the names of all messages, or false if they are too many or could
// not be read.
func (e *engine) names(ctx context.Context, prefix string) ([]string, bool) {
	l := &e.looks
	l.mu.Lock()
	if time.Now().Before(l.many) {
		l.mu.Unlock()
		return nil, false
	}
	is, joins := l.next, l.next != nil
	if !joins {
		is = &look{done: make(chan struct{})}
		l.next = is
	}
	l.mu.Unlock()
	if joins {
		select {
		case <-is.done:
			return is.names, is.whole
		case <-ctx.Done():
			return nil, false
		}
	}
	defer close(is.done)
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.next = nil // a call that begins from now on needs another query
	l.mu.Unlock()
	full, err := false, ctx.Err()
	if err == nil {
		is.names, full, err = e.namesOf(ctx, prefix, prefix+"~", namesAtOnce)
	}
	slices.Sort(is.names)
	if is.whole = err == nil && !full; full {
		l.mu.Lock()
		l.many = time.Now().Add(lookAgain)
		l.mu.Unlock()
	}
	return is.names, is.whole
}

// namesOf returns names of messages of a range, in no order. There are more than
// most of them if full is true.
func (e *engine) namesOf(ctx context.Context, after, to string, most int) (names []string, full bool, err error) {
	err = e.items(ctx, "SELECT c.id, c.once FROM c WHERE "+between, int32(most+1), func(text []byte) (bool, error) {
		var it struct {
			ID   string `json:"id"`
			Once struct {
				Out string `json:"out"`
			} `json:"once"`
		}
		if err := json.Unmarshal(text, &it); err != nil || !strings.HasPrefix(it.ID, docPrefix) {
			return true, nil // an item of an application, with properties like those of a message
		}
		names = append(names, it.Once.Out)
		full = len(names) > most
		return !full, nil
	}, parameter("@after", after), parameter("@to", to))
	return names, full, err
}

// firstBound is bound for the first page of a queue, such as those that a relay
// asks for, from the names of all messages. It returns false if it has not got them.
func (e *engine) firstBound(ctx context.Context, prefix, to string, limit int) (last string, more, ok bool) {
	all, _, _ := strings.Cut(prefix, "/")
	names, ok := e.names(ctx, all+"/")
	from, _ := slices.BinarySearch(names, prefix)
	end, _ := slices.BinarySearch(names, to)
	switch names = names[from:max(from, end)]; {
	case !ok || len(names) == 0:
		return "", false, ok
	case len(names) > limit:
		return names[limit-1], true, true
	default:
		return names[len(names)-1], false, true
	}
}
