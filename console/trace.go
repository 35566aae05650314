package console

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// Records keep no trace id, and no store has an index on headers. So messages are
// read, a page at a time, those that may need a person first. They are read with
// their bodies: sealed headers are a part of them.
const (
	traceParent   = "traceparent" // the header that otelonce writes
	longestParent = 512           // bytes of such a header that are looked at
	firstPage     = 16            // messages, whose size is not known
	largestPage   = 250           // messages
	maxBodies     = 4 << 20       // bytes of bodies on a later page
	maxCauses     = 4             // keys that are looked up for a page
	oneRead       = scanTime      // for a page, so that a store that does not answer leaves time for others
)

// tracePlace is where messages are searched: one state on shelves, or in outboxes.
type tracePlace struct {
	shelved  store.ShelfState // 0: outgoing
	outgoing store.OutgoingState
	name     string
}

var tracePlaces = []tracePlace{
	{shelved: store.Parked, name: "parked messages"},
	{outgoing: store.Stuck, name: "stuck"}, {outgoing: store.Held, name: "held"}, {outgoing: store.Delayed, name: "delayed"},
	{outgoing: store.Pending, name: "pending messages of the outbox"},
	{shelved: store.Waiting, name: "messages that wait for their consumer"},
	{outgoing: store.Published, name: "messages that are kept after they were published"},
	{shelved: store.Handled, name: "messages that were handled"}, {shelved: store.Discarded, name: "messages that were discarded"},
}

// traceCursor is where a search for a trace goes on.
type traceCursor struct {
	place, store int
	after        int64
	read, sealed int  // messages, until here
	failed       bool // some could not be read
}

func (c traceCursor) String() string {
	failed := 0
	if c.failed {
		failed = 1
	}
	return fmt.Sprintf("%d.%d.%d.%d.%d.%d", c.place, c.store, c.after, c.read, c.sealed, failed)
}

func traceCursorOf(text string, stores int) (c traceCursor, ok bool) {
	if text == "" {
		return c, true
	}
	most := []int64{int64(len(tracePlaces)) - 1, int64(stores), math.MaxInt64, maxRead, maxRead, 1}
	parts := strings.Split(text, ".")
	if len(parts) != len(most) {
		return c, false
	}
	n := make([]int64, len(parts))
	for i, part := range parts {
		var err error
		if n[i], err = strconv.ParseInt(part, 10, 64); err != nil || n[i] < 0 || n[i] > most[i] {
			return c, false
		}
	}
	return traceCursor{int(n[0]), int(n[1]), n[2], int(n[3]), int(n[4]), n[5] == 1}, true
}

// traceOf returns the trace id in a text that people paste: 32 hexadecimal digits,
// with or without dashes, or a traceparent.
func traceOf(text string) (id string, isParent bool) {
	text = strings.ToLower(strings.TrimSpace(text))
	if rest, ok := strings.CutPrefix(text, traceParent); ok {
		text = strings.Trim(rest, " \t:=\"'")
	}
	if id = parentOf(text); id != "" {
		return id, true
	}
	if id = strings.ReplaceAll(text, "-", ""); !isTrace(id) {
		return "", false
	}
	return id, false
}

// parentOf returns the trace id of a traceparent, or nothing.
func parentOf(text string) string {
	parts := strings.SplitN(strings.ToLower(strings.TrimSpace(text)), "-", 5)
	if len(parts) < 4 || len(parts[0]) != 2 || !isHex(parts[0]) || !isTrace(parts[1]) || len(parts[2]) != 16 || !isHex(parts[2]) {
		return ""
	}
	return parts[1]
}

// isTrace reports whether a text in lower case is a trace id. No trace has an id of
// zeros.
func isTrace(text string) bool {
	return len(text) == 32 && isHex(text) && strings.Trim(text, "0") != ""
}

func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

// keyOfTrace returns the UUID of the key that a trace id is, or zero.
func keyOfTrace(id string) (key [16]byte) {
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != len(key) {
		return key
	}
	return name.Parse(name.Format([16]byte(raw)))
}

// carries reports whether a header is of a trace. Anybody may have written it: a proxy
// may have joined several, and brokers keep names in any case.
func carries(header map[string]string, id string) bool {
	for called, value := range header {
		if len(called) != len(traceParent) || !strings.EqualFold(called, traceParent) {
			continue
		}
		value = value[:min(len(value), longestParent)]
		for one := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
			if parentOf(one) == id {
				return true
			}
		}
	}
	return false
}

// traceSearch is what was found of a trace.
type traceSearch struct {
	ID       string
	Messages []message
	Read     int    // messages, in this and the requests before
	Sealed   int    // of these, that could not be opened
	Searched int    // shelves and outboxes that answered
	Failed   bool   // in this request, or one before
	Cut      bool   // the time was over
	Later    bool   // requests before have read some
	Unread   string // what was not read
	More     string // a URL, if anything was not read
}

// candidate is a message that may be of a trace.
type candidate struct {
	seq    int64
	sealed bool
	bytes  int // of the body
	header map[string]string
	as     func() message
}

// trace searches messages for a trace, until a page is full or the time is over. more
// are the parameters of a link that goes on.
func (v *view) trace(id string, at traceCursor, f filter, until time.Time, more []string) *traceSearch {
	t := &traceSearch{ID: id, Read: at.read, Sealed: at.sealed, Failed: at.failed, Later: at != traceCursor{}}
	failed, asked, lost := make(map[string]bool), 0, time.Duration(0)
	for ; at.place < len(tracePlaces); at.place, at.store = at.place+1, 0 {
		for ; at.store < len(v.o.Stores); at.store, at.after = at.store+1, 0 {
			s := v.o.Stores[at.store]
			if f.Store != "" && f.Store != s.Name || failed[s.Name] {
				continue
			}
			if t.Cut = asked > 0 && v.now().After(until); t.Cut {
				return v.traceEnds(t, at, more)
			}
			asked++
			begun := v.now()
			full, err := v.traceIn(t, &at, s, until)
			if err != nil {
				v.trouble(s, err)
				failed[s.Name], t.Failed = true, true
				took := v.now().Sub(begun)
				until, lost = until.Add(took), lost+took // the others have their time, but not for ever
				if t.Cut = lost > oneRead; t.Cut {
					at.store, at.after = at.store+1, 0
					return v.traceEnds(t, at, more)
				}
				continue
			}
			if full || t.Cut {
				return v.traceEnds(t, at, more)
			}
		}
	}
	return v.traceEnds(t, at, more)
}

// traceIn searches one place of one store, from at on, and moves at with what was read.
// full reports that the page is full.
func (v *view) traceIn(t *traceSearch, at *traceCursor, s Store, until time.Time) (full bool, err error) {
	next := v.candidates(s, tracePlaces[at.place])
	if next == nil {
		return false, nil
	}
	t.Searched++
	for size := firstPage; ; {
		some, err := next(at.after, size)
		if err != nil {
			return false, err
		}
		bytes := 0
		for _, m := range some {
			t.Read++
			at.after = m.seq
			bytes += m.bytes
			switch {
			case m.sealed:
				t.Sealed++
			case carries(m.header, t.ID):
				t.Messages = append(t.Messages, m.as())
			}
			if len(t.Messages) == messagesOnPage {
				return true, nil
			}
		}
		if len(some) == 0 || size == firstPage && len(some) < size { // later pages may be short because of their bytes
			return false, nil
		}
		size = min(2*size, largestPage, max(maxBodies*len(some)/max(bytes, 1), 1)) // a shelf does not limit the bytes of a page
		if t.Cut = v.now().After(until); t.Cut {
			return false, nil
		}
	}
}

// candidates returns what reads a page of a place, or nil if the store has none.
func (v *view) candidates(s Store, in tracePlace) func(after int64, size int) ([]candidate, error) {
	sealing := &s.Store.Options().Sealing
	bounded := func(read func(context.Context, int64, int) ([]candidate, error)) func(int64, int) ([]candidate, error) {
		return func(after int64, size int) ([]candidate, error) {
			ctx, cancel := context.WithTimeout(v.r.Context(), oneRead)
			defer cancel()
			return guarded(ctx, v.Console, s.Name, func() ([]candidate, error) { return read(ctx, after, size) })
		}
	}
	if in.shelved != 0 {
		shelf, ok := once.As[store.Shelf](s.Store)
		if !ok {
			return nil
		}
		return bounded(func(ctx context.Context, after int64, size int) (page []candidate, err error) {
			ms, err := shelf.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{in.shelved}, NoQueued: true, After: after, Limit: size})
			for _, m := range ms {
				bytes := len(m.Message.Body)
				opened := store.OpenShelved(sealing, m, false)
				m.Message.Body = nil
				header := opened.Message.Header
				page = append(page, candidate{m.Seq, opened.Unopened != nil, bytes, header, func() message {
					as := shelvedMessage(s, m)
					as.URL, as.cause = v.shelvedLink(s, m), name.Parse(header[store.KeyHeader])
					return as
				}})
			}
			return page, err
		})
	}
	out, ok := once.As[store.Relayable](s.Store)
	if !ok {
		return nil
	}
	return bounded(func(ctx context.Context, after int64, size int) (page []candidate, err error) {
		q := store.OutgoingQuery{State: in.outgoing, After: after, Limit: size}
		if size > firstPage {
			q.MaxBytes = maxBodies
		}
		ms, err := out.Outgoing(ctx, q)
		for _, m := range ms {
			bytes := len(m.Message.Body)
			opened, unopened := store.OpenOutgoing(sealing, m.Message)
			m.Message.Body = nil
			page = append(page, candidate{m.Seq, unopened != nil, bytes, opened.Header, func() message {
				as := outgoingMessage(s, m)
				as.URL = v.outgoingLink(s, m)
				return as
			}})
		}
		return page, err
	})
}

// traceEnds says what was not read, and looks up what has put the messages.
func (v *view) traceEnds(t *traceSearch, at traceCursor, more []string) *traceSearch {
	if at.place < len(tracePlaces) {
		var rest []string
		for _, p := range tracePlaces[at.place:] {
			rest = append(rest, p.name)
		}
		if t.Unread = rest[0]; len(rest) > 1 {
			t.Unread = strings.Join(rest[:len(rest)-1], ", ") + " and " + rest[len(rest)-1]
		}
		at.read, at.sealed, at.failed = min(t.Read, maxRead), min(t.Sealed, maxRead), t.Failed
		t.More = v.link("/find", append(more, "trace", at.String(), "scan", "1")...)
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), oneRead)
	defer cancel()
	causes := v.causes(ctx)
	for i := range t.Messages {
		m := &t.Messages[i]
		if m.cause == [16]byte{} {
			continue
		}
		if m.Cause = causes(m.cause); m.Cause.Operation == "" {
			m.CauseText = name.Format(m.cause)
		}
	}
	return t
}

// causes returns a function that finds keys as they travel. They are looked for
// one by one, so only some of a long list: what was asked for is the list.
func (v *view) causes(ctx context.Context) func([16]byte) keyRef {
	known := map[[16]byte]keyRef{{}: {}}
	return func(id [16]byte) keyRef {
		of, asked := known[id]
		if !asked && len(known) <= maxCauses {
			of = v.keyOf(ctx, id)
			known[id] = of
		}
		return of
	}
}

// keyOf returns the key that travels like this, or none if no store here has its
// record, or has it by now.
func (v *view) keyOf(ctx context.Context, id [16]byte) (k keyRef) {
	for _, s := range v.o.Stores {
		found, err := guarded(ctx, v.Console, s.Name, func() (once.Key, error) { return store.FindKey(ctx, s.Store, id) })
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			v.trouble(s, err)
		}
		if found != (once.Key{}) {
			return keyRef{s.Name, found}
		}
	}
	return k
}
