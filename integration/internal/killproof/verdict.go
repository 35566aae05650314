//go:build linux

package killproof

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/outbox"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// heard is what the test hears from processes and from the stream.
type heard struct {
	js jetstream.JetStream

	mu     sync.Mutex
	told   map[int]bool   // units that are known to be done
	died   map[string]int // processes, by place
	prints []print
	known  map[string]bool // IDs of prints
	newest int             // unit
}

// print is a message in the stream.
type print struct{ id, order, body, seq string }

// listen reads the stream, until the end of the test.
func listen(t *testing.T, js jetstream.JetStream, b *natsbroker.Broker) *heard {
	t.Helper()
	h := &heard{js: js, told: make(map[int]bool), died: make(map[string]int), known: make(map[string]bool), newest: -1}
	for subject, take := range map[string]func(string){told: h.tell, died: h.die} {
		_, err := js.Conn().Subscribe(subject, func(m *nats.Msg) { take(string(m.Data)) })
		proof.Must(t, err)
	}
	session, err := b.Log(stream, "test").Open(proof.Soon(t), 1000)
	proof.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			ds, err := session.Receive(ctx, 100)
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("the stream cannot be read: %v", err)
				}
				return
			}
			h.print(ds)
			_ = session.Ack(ctx, ds) // which tells the server nothing
		}
	})
	t.Cleanup(func() {
		stop()
		reading.Wait()
		_ = session.Close(proof.Soon(t))
	})
	return h
}

func (h *heard) tell(text string) {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err) // it is a number of produce
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told[n], h.newest = true, max(h.newest, n)
}

func (h *heard) die(place string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.died[place]++
}

func (h *heard) print(ds []broker.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range ds {
		m := d.Message
		h.prints = append(h.prints, print{m.ID, m.OrderingKey, string(m.Body), m.Header[outbox.SeqHeader]})
		h.known[m.ID] = true
	}
}

// last returns the highest unit that is known to be done, or -1.
func (h *heard) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// arrived returns how many different messages were published.
func (h *heard) arrived() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.known)
}

// never returns the places where nobody has died.
func (h *heard) never(places []string) (left []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, place := range places {
		if h.died[place] == 0 {
			left = append(left, place)
		}
	}
	return left
}

func (h *heard) deaths() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.died)
}

// missing returns what was not published.
func (h *heard) missing(want map[string]print) (missing []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range want {
		if !h.known[id] {
			missing = append(missing, "message "+id)
		}
	}
	return missing
}

// published returns the IDs of the messages in the stream.
func (h *heard) published() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.known))
}

// undelivered says what consumers have not acknowledged.
func (h *heard) undelivered(ctx context.Context) []string {
	of, err := h.js.Consumer(ctx, stream, group)
	if err != nil {
		return []string{err.Error()}
	}
	is := of.CachedInfo()
	if left := int(is.NumPending) + is.NumAckPending; left > 0 {
		return []string{fmt.Sprintf("%d deliveries", left)}
	}
	return nil
}

// unread says what of the stream the test has not read.
func (h *heard) unread(ctx context.Context) []string {
	of, err := h.js.Stream(ctx, stream)
	if err != nil {
		return []string{err.Error()}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if left := int(of.CachedInfo().State.Msgs) - len(h.prints); left > 0 {
		return []string{fmt.Sprintf("%d messages that the test has not read", left)}
	}
	return nil
}

func (h *heard) all() (prints []print, told []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.prints), slices.Sorted(maps.Keys(h.told))
}

// ledger is what was done, by line.
type ledger struct {
	made    map[string][]string // entries of units, as they were committed
	handled map[string][]string // messages; nil: this is not judged
	prints  []print
	told    []int
}

// expected returns the messages of the units that were committed.
func (l *ledger) expected() map[string]print {
	want := make(map[string]print)
	for _, entries := range l.made {
		for _, entry := range entries {
			u, attempt := madeBy(entry)
			for _, m := range u.messages(attempt) {
				want[m.ID] = print{id: m.ID, order: m.OrderingKey, body: string(m.Body)}
			}
		}
	}
	return want
}

// unhandled returns those messages that are not in a list.
func (l *ledger) unhandled(ids []string) (left []string) {
	handled := make(map[string]bool)
	for _, some := range l.handled {
		for _, id := range some {
			handled[id] = true
		}
	}
	for _, id := range ids {
		if !handled[id] {
			left = append(left, "message "+id+", which is not handled")
		}
	}
	return left
}

// verdict lists what is wrong. A message that is doubled is not wrong.
type verdict struct {
	wrong   map[string][]string
	doubled []string
	units   int
	prints  int
	told    int
}

func (v verdict) String() string {
	return fmt.Sprintf("%d units, of which %d were known to be done, and %d publications, of which %d again; wrong: %v", v.units, v.told,
		v.prints, len(v.doubled), v.wrong)
}

func (v verdict) check(t *testing.T) {
	t.Helper()
	for what, all := range v.wrong {
		t.Errorf("%d %s: %s", len(all), what, strings.Join(all[:min(len(all), 10)], ", "))
	}
}

// lasting returns what is wrong although some messages may still be published and
// handled.
func (v verdict) lasting() map[string][]string {
	lasting := maps.Clone(v.wrong)
	delete(lasting, wrongLost)
	delete(lasting, wrongUnhandled)
	return lasting
}

// The wrongs.
const (
	wrongAgain       = "units were done again"
	wrongDoomed      = "units committed although they failed"
	wrongUndone      = "units were known to be done, and are not"
	wrongLost        = "messages were lost"
	wrongStuck       = "kinds of messages are in the outbox, and no relay publishes them"
	wrongUncommitted = "messages were published of transactions that did not commit"
	wrongChanged     = "messages were published as something else"
	wrongOrder       = "messages were published before earlier ones of their ordering key"
	wrongHandled     = "messages were handled twice, or never put"
	wrongUnhandled   = "messages were not handled"
)

// judge compares what was done with what should be.
func (l *ledger) judge() verdict {
	v := verdict{wrong: make(map[string][]string), prints: len(l.prints), told: len(l.told)}
	add := func(what, which string) { v.wrong[what] = append(v.wrong[what], which) }
	done, want := make(map[int]bool), l.expected()
	for _, line := range Lines {
		for _, entry := range l.made[line] {
			u, _ := madeBy(entry)
			if done[u.number] {
				add(wrongAgain, entry)
			}
			if u.doomed || u.line != line {
				add(wrongDoomed, entry)
			}
			done[u.number] = true
			v.units++
		}
	}
	for _, n := range l.told {
		if !done[n] {
			add(wrongUndone, strconv.Itoa(n))
		}
	}
	first, inOrder := make(map[string]print), make(map[string][]string)
	for _, p := range l.prints {
		is, ok := want[p.id]
		if !ok || p.body != is.body {
			add(wrongUncommitted, p.id)
			continue
		}
		if p.order != is.order {
			add(wrongChanged, p.id)
		}
		if before, again := first[p.id]; again {
			if v.doubled = append(v.doubled, p.id); before.seq != p.seq {
				add(wrongChanged, fmt.Sprintf("%s: %s and %s", p.id, before.seq, p.seq))
			}
			continue
		}
		first[p.id] = p
		inOrder[p.order] = append(inOrder[p.order], p.id)
	}
	for id := range want {
		if _, printed := first[id]; !printed {
			add(wrongLost, id)
		}
	}
	for _, line := range Lines {
		l.judgeOrder(line, inOrder[line], first, add)
	}
	if l.handled != nil {
		l.judgeHandled(want, add)
	}
	for _, all := range v.wrong {
		slices.Sort(all)
	}
	return v
}

// judgeOrder compares the first times of the messages of an ordering key with the
// order in which their units committed.
func (l *ledger) judgeOrder(line string, got []string, first map[string]print, add func(what, which string)) {
	at := 0
	seen := make(map[string]bool)
	for _, entry := range l.made[line] {
		u, attempt := madeBy(entry)
		for _, m := range u.messages(attempt) {
			if _, printed := first[m.ID]; m.OrderingKey == "" || !printed || seen[m.ID] { // which is a wrong of its own
				continue
			}
			if seen[m.ID] = true; at < len(got) && got[at] != m.ID {
				add(wrongOrder, fmt.Sprintf("%s: %s before %s", line, got[at], m.ID))
				return
			}
			at++
		}
	}
}

// judgeHandled checks that each message was handled once.
func (l *ledger) judgeHandled(want map[string]print, add func(what, which string)) {
	handled := make(map[string]bool)
	for line, ids := range l.handled {
		for _, id := range ids {
			if handled[id] || LineOf(want[id].body) != line {
				add(wrongHandled, id)
			}
			handled[id] = true
		}
	}
	for id := range want {
		if !handled[id] {
			add(wrongUnhandled, id)
		}
	}
}
