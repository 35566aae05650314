package cas_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// lagging is a table whose Queued is behind: each document shows up, changes and
// goes on its own, a random number of reads later.
type lagging struct {
	*table
	mu    sync.Mutex
	rand  *rand.Rand
	index map[cas.DocName]cas.Doc
}

func newLagging(seed uint64) *lagging {
	return &lagging{table: newTable(), rand: rand.New(rand.NewPCG(seed, 0)), index: make(map[cas.DocName]cas.Doc)}
}

func (l *lagging) Queued(ctx context.Context, prefix, after string, limit int) (page []cas.NamedDoc, err error) {
	is, err := l.table.Queued(ctx, prefix, "", 1<<20)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := make(map[cas.DocName]cas.Doc)
	for _, doc := range is {
		now[doc.DocName] = doc.Doc
	}
	for at := range l.index {
		if _, ok := now[at]; !ok && strings.HasPrefix(at.Name, prefix) && l.rand.IntN(3) == 0 {
			delete(l.index, at)
		}
	}
	for _, doc := range is {
		if l.rand.IntN(3) == 0 {
			l.index[doc.DocName] = doc.Doc
		}
	}
	for at, doc := range l.index {
		if strings.HasPrefix(at.Name, prefix) && at.Name > after {
			page = append(page, cas.NamedDoc{DocName: at, Doc: doc})
		}
	}
	slices.SortFunc(page, func(a, b cas.NamedDoc) int { return strings.Compare(a.Name, b.Name) })
	return page[:min(len(page), limit)], err
}

func (l *lagging) publishing() *cas.Publishing[*batch] {
	return &cas.Publishing[*batch]{Transactions: &open(l.table).Transactions, Queue: l, MaxDoc: 1 << 20, Lags: true}
}

// put puts a message, in a transaction of its own, until it is not in conflict.
func put(t *testing.T, p *cas.Publishing[*batch], at *table, ms ...store.Outgoing) {
	t.Helper()
	for {
		tx := at.Begin()
		err := p.PutTx(t.Context(), tx, ms)
		if err == nil {
			err = at.Commit(t.Context(), tx)
		}
		if err == nil {
			return
		}
		if !errors.Is(err, once.ErrConflict) {
			t.Fatal(err)
		}
	}
}

func outgoing(id, key string) store.Outgoing {
	return store.Outgoing{Message: broker.Message{ID: id, Topic: "topic", OrderingKey: key}}
}

// Relays that read an index that is behind send each message, in the order of its
// key. One relay sends each of them once, because it knows what it has sent.
func TestOrderWhereTheIndexIsBehind(t *testing.T) {
	for seed := range uint64(200) {
		at := newLagging(seed)
		writers := []*cas.Publishing[*batch]{at.publishing(), at.publishing()} // with clocks and numbers of their own
		relay := at.publishing()
		const keys, messages = 3, 30
		sent, times := make(map[string][]string), make(map[string]int)
		put1 := func(n int) {
			key := fmt.Sprint("key ", n%keys)
			if n%10 == 9 {
				key = ""
			}
			put(t, writers[n/7%2], at.table, outgoing(fmt.Sprintf("%02d", n), key))
		}
		n := 0
		for read := 0; len(times) < messages; read++ {
			if read > 10_000 {
				t.Fatalf("seed %d: %d of %d messages were sent", seed, len(times), messages)
			}
			for range at.rand.IntN(3) {
				if n < messages {
					put1(n)
					n++
				}
			}
			page, err := relay.Outgoing(t.Context(), store.OutgoingQuery{Limit: 1 + at.rand.IntN(5), HeldBy: allThatHold})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range page {
				id, key := m.Message.ID, m.Message.OrderingKey
				if times[id]++; times[id] > 1 {
					t.Fatalf("seed %d: message %s was read after it was sent", seed, id)
				}
				if all := sent[key]; key != "" && len(all) > 0 && all[len(all)-1] > id {
					t.Fatalf("seed %d: of %q message %s came after %s", seed, key, id, all[len(all)-1])
				}
				sent[key] = append(sent[key], id)
			}
			changed, err := relay.Sent(t.Context(), [16]byte{}, page, store.Delete)
			if err != nil || changed != len(page) {
				t.Fatalf("seed %d: Sent changed %d of %d, %v", seed, changed, len(page), err)
			}
		}
	}
}

// skewed is a clock that is off by less than it says.
type skewed struct{ by time.Duration }

func (s skewed) Now(context.Context) (cas.Now, error) {
	now := cas.Instant(time.Now().Add(s.by).UnixMicro())
	return cas.Between(now-1_000_000, now+1_000_000), nil
}

// Seq rises for an ordering key also if the next writer's clock is behind.
func TestOrderIfClocksDiffer(t *testing.T) {
	at := newTable()
	var want []string
	for i := range 20 {
		p := openPress(at).Publishing
		s := cas.New(at, skewed{by: []time.Duration{900, -900}[i%2] * time.Millisecond}, p.Transactions.Options())
		p.Transactions = &cas.Transactions[*batch]{Store: s, Engine: at}
		want = append(want, fmt.Sprint(i))
		put(t, p, at, outgoing(want[i], "key"))
	}
	page, err := openPress(at).Outgoing(t.Context(), store.OutgoingQuery{})
	var got []string
	for _, m := range page {
		got = append(got, m.Message.ID)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the outbox has %q, %v", got, err)
	}
}

// A lane that is leased is not taken while it may not have lapsed, and its relay
// stops using it before that.
func TestALaneIsNotTakenWhileItMayBeLeased(t *testing.T) {
	at := newTable()
	clock := &vague{}
	p := openPress(at).Publishing
	p.Transactions = &cas.Transactions[*batch]{Store: cas.New(at, clock, p.Transactions.Options()), Engine: at}
	a, b := [16]byte{1}, [16]byte{2}
	lease := func(relay [16]byte) store.LaneLease {
		t.Helper()
		as, err := p.LeaseLanes(t.Context(), relay, 10*time.Second, []int{3})
		if err != nil {
			t.Fatal(err)
		}
		return as.Lanes[3]
	}
	if l := lease(a); l.Relay != a || l.Left != 10*time.Second {
		t.Errorf("a lease of 10 seconds is %+v", l)
	}
	const minute = 60_000_000
	clock.at += 30 * minute
	as, err := p.LeaseLanes(t.Context(), a, 10*time.Second, nil)
	if l := as.Lanes[3]; l.Relay != a || l.Left > 0 || err != nil {
		t.Errorf("for its relay the lease, which may have lapsed, is %+v, %v", l, err)
	}
	if l := lease(b); l.Relay != a || l.Left <= 0 {
		t.Errorf("for another relay the lease, which may not have lapsed, is %+v", l)
	}
	clock.at += 31 * minute
	if l := lease(b); l.Relay != b {
		t.Errorf("a lease that has lapsed is %+v", l)
	}
}

// A message that would leave no room for the reason why it failed is refused.
func TestAMessageThatIsTooLarge(t *testing.T) {
	at := newTable()
	p := openPress(at).Publishing
	p.MaxDoc = 256 << 10
	m := outgoing("1", "")
	m.Message.Body = make([]byte, 160<<10)
	tx := at.Begin()
	if err := p.PutTx(t.Context(), tx, []store.Outgoing{m}); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "reference") {
		t.Errorf("PutTx returned %v", err)
	}
	m.Message.Body = m.Message.Body[:150<<10]
	put(t, p, at, m)
	page, err := p.Outgoing(t.Context(), store.OutgoingQuery{})
	if err != nil || len(page) != 1 {
		t.Fatalf("the outbox has %d messages, %v", len(page), err)
	}
	page[0].Reason = strings.Repeat("\x01", 64<<10) // which JSON writes with six bytes each
	if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Stuck); n != 1 || err != nil {
		t.Errorf("MoveOutgoing changed %d, %v", n, err)
	}
	page, err = p.Outgoing(t.Context(), store.OutgoingQuery{State: store.Stuck})
	if err != nil || len(page) != 1 || page[0].Reason == "" || len(page[0].Message.Body) != 150<<10 {
		t.Errorf("the outbox has %d stuck messages, %v", len(page), err)
	}
}

// Messages in different places may have the same Seq. Each is moved and ended on
// its own.
func TestMessagesInTwoPlacesHaveTheSameSeq(t *testing.T) {
	setUp := func() (*table, *cas.Publishing[*batch], []store.Outgoing) {
		at := newTable()
		p := openPress(at).Publishing
		put(t, p, at, outgoing("1", ""))
		for doc, is := range at.Docs {
			twin := cas.Doc{Version: "twin", Text: []byte(strings.Replace(string(is.Text), `"ID":"1"`, `"ID":"2"`, 1))}
			at.Docs = map[cas.DocName]cas.Doc{{Place: "a", Name: doc.Name}: is, {Place: "b", Name: doc.Name}: twin}
		}
		page, err := p.Outgoing(t.Context(), store.OutgoingQuery{})
		if err != nil || len(page) != 2 || page[0].Seq != page[1].Seq {
			t.Fatalf("the outbox has %+v, %v", page, err)
		}
		return at, p, page
	}
	ids := func(p *cas.Publishing[*batch], state store.OutgoingState) (ids []string) {
		page, err := p.Outgoing(t.Context(), store.OutgoingQuery{State: state})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range page {
			ids = append(ids, m.Message.ID)
		}
		return ids
	}
	for n := range 2 {
		_, p, page := setUp()
		sent, left := page[n], page[1-n].Message.ID
		if n, err := p.Sent(t.Context(), [16]byte{}, []store.Outgoing{sent}, store.Delete); n != 1 || err != nil {
			t.Errorf("Sent changed %d, %v", n, err)
		}
		if got := ids(p, store.Pending); !slices.Equal(got, []string{left}) {
			t.Errorf("after message %s was sent, %q are pending", sent.Message.ID, got)
		}
		if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, []store.Outgoing{page[1-n]}, store.Held); n != 1 || err != nil {
			t.Errorf("MoveOutgoing changed %d, %v", n, err)
		}
		if got := ids(p, store.Held); !slices.Equal(got, []string{left}) {
			t.Errorf("after message %s was moved, %q are held", left, got)
		}
	}
	at, p, page := setUp()
	if n, err := p.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held); n != 2 || err != nil {
		t.Errorf("MoveOutgoing of both changed %d, %v", n, err)
	}
	// Without what the store has told, it is not known which is meant.
	bare := []store.Outgoing{{Lane: page[0].Lane, Seq: page[0].Seq, State: store.Held}}
	if n, err := openPress(at).RemoveOutgoing(t.Context(), [16]byte{}, bare); n != 0 || err != nil {
		t.Errorf("RemoveOutgoing of one of two changed %d, %v", n, err)
	}
	if got := ids(p, store.Held); len(got) != 2 {
		t.Errorf("%q are held", got)
	}
	held, err := openPress(at).Outgoing(t.Context(), store.OutgoingQuery{State: store.Held})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := openPress(at).RemoveOutgoing(t.Context(), [16]byte{}, held); n != 2 || err != nil {
		t.Errorf("RemoveOutgoing of both changed %d, %v", n, err)
	}
}

// weighed notes how many bytes Queued has returned.
type weighed struct {
	*table
	mu  sync.Mutex
	all int
}

func (w *weighed) Queued(ctx context.Context, prefix, after string, limit int) ([]cas.NamedDoc, error) {
	page, err := w.table.Queued(ctx, prefix, after, limit)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, doc := range page {
		w.all += len(doc.Text)
	}
	return page, err
}

// A process that begins reads large messages in small pages, so that a backlog of
// them fits into its memory.
func TestMessagesThatAreLargeAreReadInSmallPages(t *testing.T) {
	const messages, size = 300, 200 << 10 // 60 MB
	set := func(delay time.Duration) (*weighed, *cas.Publishing[*batch]) {
		at := &weighed{table: newTable()}
		writer := openPress(at.table).Publishing
		for n := range messages {
			m := outgoing(fmt.Sprint(n), "key") // all of one lane
			m.Delay, m.Message.Body = delay, make([]byte, size)
			put(t, writer, at.table, m)
		}
		p := openPress(at.table).Publishing
		p.Queue = at
		return at, p
	}
	const most = 4 << 20
	at, p := set(0)
	page, err := p.Outgoing(t.Context(), store.OutgoingQuery{Limit: 10_000, MaxBytes: 1 << 20})
	if err != nil || len(page) != 5 || at.all > most {
		t.Errorf("a query of 1 MB returned %d messages, %v, and read %d bytes", len(page), err, at.all)
	}
	at, p = set(time.Microsecond)
	woken, wakes := 0, 0
	for next := time.Duration(0); next <= 0; wakes++ {
		at.all = 0
		var n int
		if n, next, err = p.WakeDelayed(t.Context(), [16]byte{}, store.Pending, 10_000); err != nil {
			t.Fatal(err)
		}
		if woken += n; at.all > most {
			t.Errorf("WakeDelayed woke %d and read %d bytes", n, at.all)
		}
	}
	if woken != messages {
		t.Errorf("WakeDelayed woke %d of %d messages in %d calls", woken, messages, wakes)
	}
	single := &largest{weighed: at}
	p.Queue = single
	depths, err := p.OutboxDepth(t.Context(), 10_000)
	if err != nil || len(depths) != 1 || depths[0].Count != messages || single.most > most {
		t.Errorf("OutboxDepth returned %+v, %v, and read %d bytes at once", depths, err, single.most)
	}
}

// largest notes how many bytes Queued has returned at once.
type largest struct {
	*weighed
	most int
}

func (l *largest) Queued(ctx context.Context, prefix, after string, limit int) ([]cas.NamedDoc, error) {
	page, err := l.table.Queued(ctx, prefix, after, limit)
	bytes := 0
	for _, doc := range page {
		bytes += len(doc.Text)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = max(l.most, bytes)
	return page, err
}
