package cas_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// partly is a table of which Queued lacks some documents, and has others as they
// were.
type partly struct {
	*table
	lacks func(cas.DocName) bool
	old   []cas.NamedDoc
}

func (p *partly) Queued(ctx context.Context, prefix, after string, limit int) (page []cas.NamedDoc, err error) {
	is, err := p.table.Queued(ctx, prefix, "", 1<<20)
	for _, doc := range is {
		isOld := func(old cas.NamedDoc) bool { return old.DocName == doc.DocName }
		if doc.Name > after && (p.lacks == nil || !p.lacks(doc.DocName)) && !slices.ContainsFunc(p.old, isOld) {
			page = append(page, doc)
		}
	}
	for _, doc := range p.old {
		if strings.HasPrefix(doc.Name, prefix) && doc.Name > after {
			page = append(page, doc)
		}
	}
	slices.SortFunc(page, func(a, b cas.NamedDoc) int { return strings.Compare(a.Name, b.Name) })
	return page[:min(len(page), limit)], err
}

// publishing returns the outbox as a process that begins now has it.
func (p *partly) publishing() *cas.Publishing[*batch] {
	return &cas.Publishing[*batch]{Transactions: &open(p.table).Transactions, Queue: p, MaxDoc: 1 << 20, Lags: true}
}

func read(t *testing.T, p *cas.Publishing[*batch], q store.OutgoingQuery) (page []store.Outgoing, ids []string) {
	t.Helper()
	page, err := p.Outgoing(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range page {
		ids = append(ids, m.Message.ID)
	}
	return page, ids
}

// in returns whether a document is a message in a state.
func in(state store.OutgoingState) func(cas.DocName) bool {
	return func(at cas.DocName) bool {
		parts := strings.Split(at.Name, "/")
		return len(parts) > 2 && parts[0] == "out" && parts[2] == fmt.Sprint(int(state))
	}
}

// allThatHold are the states that a relay lets messages wait for.
var allThatHold = []store.OutgoingState{store.Pending, store.Held, store.Stuck}

// A message that failed is held, and the index does not have it yet. Nobody reads
// the next one of its key, also a relay that has just got the lane.
func TestTheNextMessageWaitsForOneThatTheIndexLacks(t *testing.T) {
	for _, state := range []store.OutgoingState{store.Held, store.Stuck} {
		at := &partly{table: newTable()}
		before, after := at.publishing(), at.publishing()
		put(t, before, at.table, outgoing("1", "key"), outgoing("2", "key"), outgoing("3", "key"), outgoing("4", "other"))
		page, _ := read(t, before, store.OutgoingQuery{Limit: 1})
		if n, err := before.MoveOutgoing(t.Context(), [16]byte{}, page, state); n != 1 || err != nil {
			t.Fatalf("MoveOutgoing changed %d, %v", n, err)
		}
		at.lacks = in(state)
		for _, p := range []*cas.Publishing[*batch]{before, after} {
			if _, ids := read(t, p, store.OutgoingQuery{HeldBy: allThatHold}); !slices.Equal(ids, []string{"4"}) {
				t.Errorf("while the first is %v, the messages to publish are %q", state, ids)
			}
		}
	}
}

// Of a key whose first message is held, the index has only the second one.
func TestAHeldMessageWaitsForOneThatTheIndexLacks(t *testing.T) {
	at := &partly{table: newTable()}
	before, after := at.publishing(), at.publishing()
	put(t, before, at.table, outgoing("1", "key"), outgoing("2", "key"))
	page, _ := read(t, before, store.OutgoingQuery{})
	q := store.OutgoingQuery{State: store.Held, OrderingKey: "key", HeldBy: allThatHold}
	for n, move := range [][]store.Outgoing{page[1:], page[:1]} { // the first is Pending, and then Held
		if n, err := before.MoveOutgoing(t.Context(), [16]byte{}, move, store.Held); n != 1 || err != nil {
			t.Fatalf("MoveOutgoing changed %d, %v", n, err)
		}
		at.lacks = func(doc cas.DocName) bool { return strings.HasSuffix(doc.Name, fmt.Sprintf("%016x", page[0].Seq)) }
		if _, ids := read(t, after, q); ids != nil {
			t.Errorf("after move %d, the held messages to publish are %q", n, ids)
		}
	}
	at.lacks = nil
	if _, ids := read(t, after, q); !slices.Equal(ids, []string{"1", "2"}) {
		t.Errorf("the held messages to publish are %q", ids)
	}
}

// A relay may let messages pass one that is stuck.
func TestMessagesPassOneThatIsStuck(t *testing.T) {
	at := &partly{table: newTable()}
	p := at.publishing()
	put(t, p, at.table, outgoing("1", "key"), outgoing("2", "key"))
	page, _ := read(t, p, store.OutgoingQuery{Limit: 1})
	if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Stuck); n != 1 || err != nil {
		t.Fatalf("MoveOutgoing changed %d, %v", n, err)
	}
	q := store.OutgoingQuery{HeldBy: []store.OutgoingState{store.Pending, store.Held}}
	if _, ids := read(t, at.publishing(), q); !slices.Equal(ids, []string{"2"}) {
		t.Errorf("the messages to publish are %q", ids)
	}
}

// Messages that wait do not fill a page.
func TestMessagesThatWaitLeaveRoomForOthers(t *testing.T) {
	at := &partly{table: newTable()}
	p := at.publishing()
	for n := range 9 {
		put(t, p, at.table, outgoing(fmt.Sprint("key ", n), "key"))
	}
	put(t, p, at.table, outgoing("other 1", "other"), outgoing("other 2", "other"))
	page, _ := read(t, p, store.OutgoingQuery{Limit: 1})
	if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held); n != 1 || err != nil {
		t.Fatalf("MoveOutgoing changed %d, %v", n, err)
	}
	at.lacks = in(store.Held)
	for limit := 1; limit < 4; limit++ {
		if _, ids := read(t, at.publishing(), store.OutgoingQuery{Limit: limit, HeldBy: allThatHold}); len(ids) == 0 || ids[0] != "other 1" {
			t.Errorf("with a limit of %d, the messages to publish are %q", limit, ids)
		}
	}
}

// A person replays a message while its state is looked up.
func TestAMessageIsReplayedWhileItIsLookedUp(t *testing.T) {
	at := &partly{table: newTable()}
	p := at.publishing()
	put(t, p, at.table, outgoing("1", "key"), outgoing("2", "key"))
	page, _ := read(t, p, store.OutgoingQuery{Limit: 1})
	if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Stuck); n != 1 || err != nil {
		t.Fatalf("MoveOutgoing changed %d, %v", n, err)
	}
	stuck, _ := read(t, p, store.OutgoingQuery{State: store.Stuck})
	relay := at.publishing()
	relay.Queue = &looked{at, func(doc cas.DocName) {
		if in(store.Stuck)(doc) {
			if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, stuck, store.Held); n != 1 || err != nil {
				t.Errorf("MoveOutgoing changed %d, %v", n, err)
			}
		}
	}}
	if _, ids := read(t, relay, store.OutgoingQuery{HeldBy: allThatHold}); ids != nil {
		t.Errorf("the messages to publish are %q", ids)
	}
}

// looked calls before before a document is loaded.
type looked struct {
	*partly
	before func(cas.DocName)
}

func (l *looked) LoadDoc(ctx context.Context, at cas.DocName) (cas.Doc, error) {
	l.before(at)
	return l.partly.LoadDoc(ctx, at)
}

// A message that was ended is not read again, also if the index has an earlier
// version of it, which another process has changed.
func TestAnEarlierVersionOfAMessageThatWasEnded(t *testing.T) {
	at := &partly{table: newTable()}
	relay, other := at.publishing(), at.publishing()
	put(t, relay, at.table, outgoing("1", ""))
	page, _ := read(t, relay, store.OutgoingQuery{})
	hold := func(p *cas.Publishing[*batch], ms []store.Outgoing) []store.Outgoing {
		t.Helper()
		if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, ms, store.Held); n != 1 || err != nil {
			t.Fatalf("MoveOutgoing changed %d, %v", n, err)
		}
		ms, _ = read(t, p, store.OutgoingQuery{State: store.Held})
		return ms
	}
	page = hold(relay, page)
	for doc, is := range at.Docs {
		if in(store.Held)(doc) {
			at.old = append(at.old, cas.NamedDoc{DocName: doc, Doc: is})
		}
	}
	was := at.old
	at.old = nil
	page = hold(relay, hold(other, page))
	if n, err := relay.Sent(t.Context(), [16]byte{}, page, store.Delete); n != 1 || err != nil {
		t.Fatalf("Sent changed %d, %v", n, err)
	}
	at.old = was
	for range 2 {
		if _, ids := read(t, relay, store.OutgoingQuery{State: store.Held}); ids != nil {
			t.Errorf("after they were sent, %q are held", ids)
		}
	}
}

// A move that was refused leaves a message as it was, which is read again.
func TestAMessageWhoseMoveWasRefused(t *testing.T) {
	at := &partly{table: newTable()}
	p := at.publishing()
	refusing := &refusing{partly: at}
	p.Queue = refusing
	put(t, p, at.table, outgoing("1", ""))
	for _, refuses := range []bool{true, false} {
		refusing.on = refuses
		page, ids := read(t, p, store.OutgoingQuery{})
		if !slices.Equal(ids, []string{"1"}) {
			t.Fatalf("the pending messages are %q", ids)
		}
		want := map[bool]int{false: 1}[refuses]
		if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held); n != want || err != nil {
			t.Errorf("MoveOutgoing changed %d, %v", n, err)
		}
	}
}

// refusing refuses moves, as an engine does if a name is taken for a while.
type refusing struct {
	*partly
	on bool
}

func (r *refusing) Move(ctx context.Context, moves []cas.Move) ([]bool, error) {
	if r.on {
		return make([]bool, len(moves)), nil
	}
	return r.partly.Move(ctx, moves)
}

// The reply to the end of a message is lost. It is ended again, and then not read
// from an index that is behind.
func TestAMessageWhoseEndIsRepeated(t *testing.T) {
	for _, then := range []store.Ending{store.Delete, store.Keep} {
		at := &partly{table: newTable()}
		p := at.publishing()
		lossy := &lossyMoves{partly: at}
		p.Queue = lossy
		put(t, p, at.table, outgoing("1", ""))
		page, _ := read(t, p, store.OutgoingQuery{})
		for doc, is := range at.Docs {
			if in(store.Pending)(doc) {
				at.old = append(at.old, cas.NamedDoc{DocName: doc, Doc: is})
			}
		}
		if _, err := p.Sent(t.Context(), [16]byte{}, page, then); err != errNoReply {
			t.Errorf("Sent returned %v", err)
		}
		lossy.calm = true
		if n, err := p.Sent(t.Context(), [16]byte{}, page, then); n != 0 || err != nil {
			t.Errorf("the second Sent changed %d, %v", n, err)
		}
		if _, ids := read(t, p, store.OutgoingQuery{}); ids != nil {
			t.Errorf("after they were sent, %q are pending", ids)
		}
	}
}

var errNoReply = errors.New("there was no reply")

// lossyMoves loses the replies to moves.
type lossyMoves struct {
	*partly
	calm bool
}

func (l *lossyMoves) Move(ctx context.Context, moves []cas.Move) ([]bool, error) {
	made, err := l.partly.Move(ctx, moves)
	if !l.calm {
		return make([]bool, len(moves)), errNoReply
	}
	return made, err
}

// A message that has changed and kept its name is changed again, although the index
// has lost it.
func TestAMessageThatKeptItsNameIsDiscarded(t *testing.T) {
	at := &partly{table: newTable()}
	p := at.publishing()
	put(t, p, at.table, outgoing("1", ""))
	page, _ := read(t, p, store.OutgoingQuery{})
	if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Stuck); n != 1 || err != nil {
		t.Fatalf("MoveOutgoing changed %d, %v", n, err)
	}
	page, _ = read(t, p, store.OutgoingQuery{State: store.Stuck})
	at.lacks = in(store.Stuck)
	if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Stuck); n != 1 || err != nil {
		t.Errorf("MoveOutgoing in place changed %d, %v", n, err)
	}
	if n, err := p.Sent(t.Context(), [16]byte{}, page, store.Archive); n != 1 || err != nil {
		t.Errorf("Sent changed %d, %v", n, err)
	}
}

// Relays that come and go read an index that is behind, while messages fail, are
// held, get stuck and are replayed. What they publish first of each message is in
// the order of its key, and nothing is lost. A relay that has ended a message does
// not read it again.
func TestOrderOfFailedMessagesWhereTheIndexIsBehind(t *testing.T) {
	for seed := range uint64(150) {
		at := newLagging(seed)
		relays := []*cas.Publishing[*batch]{at.publishing(), at.publishing()}
		person := at.publishing()
		active := 0
		const keys, messages = 2, 20
		published := make(map[string][]string) // of each key, the messages when they were first published
		times := make(map[string]int)
		ended := make(map[string]int) // by which relay
		carry := func(q store.OutgoingQuery) {
			q.HeldBy = allThatHold
			relay := relays[active]
			page, _ := read(t, relay, q)
			failed := make(map[string]bool)
			for _, m := range page {
				id, key := m.Message.ID, m.Message.OrderingKey
				if by, known := ended[id]; known && by == active {
					t.Fatalf("seed %d: message %s was read by the relay that has ended it", seed, id)
				}
				if failed[key] {
					continue
				}
				one := []store.Outgoing{m}
				if at.rand.IntN(3) == 0 {
					failed[key] = key != ""
					to := []store.OutgoingState{store.Held, store.Held, store.Stuck}[at.rand.IntN(3)]
					if _, err := relay.MoveOutgoing(t.Context(), [16]byte{}, one, to); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if times[id]++; times[id] == 1 {
					published[key] = append(published[key], id)
				}
				changed, err := relay.Sent(t.Context(), [16]byte{}, one, []store.Ending{store.Delete, store.Keep}[seed%2])
				if err != nil {
					t.Fatal(err)
				}
				if changed == 1 {
					ended[id] = active
				}
			}
		}
		n := 0
		for round := 0; len(ended) < messages; round++ {
			if round > 20_000 {
				t.Fatalf("seed %d: %d of %d messages were ended", seed, len(ended), messages)
			}
			if n < messages && at.rand.IntN(2) == 0 {
				key := fmt.Sprint("key ", n%keys)
				if n%7 == 6 {
					key = ""
				}
				put(t, person, at.table, outgoing(fmt.Sprintf("%02d", n), key))
				n++
			}
			carry(store.OutgoingQuery{Limit: 1 + at.rand.IntN(4)})
			carry(store.OutgoingQuery{State: store.Held, OrderingKey: fmt.Sprint("key ", at.rand.IntN(keys))})
			carry(store.OutgoingQuery{State: store.Held})
			if at.rand.IntN(5) == 0 {
				stuck, _ := read(t, person, store.OutgoingQuery{State: store.Stuck})
				if _, err := person.MoveOutgoing(t.Context(), [16]byte{}, stuck, store.Held); err != nil {
					t.Fatal(err)
				}
			}
			if at.rand.IntN(8) == 0 {
				active = 1 - active
			}
		}
		for key, ids := range published {
			if key != "" && !slices.IsSorted(ids) {
				t.Errorf("seed %d: the messages of %q were published in the order %q", seed, key, ids)
			}
		}
	}
}
