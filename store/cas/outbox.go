package cas

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/chance"
	"github.com/effectively-once/once/store"
)

// Publishing has the methods by which a store is a store.Outbox, on an engine
// that finds documents by their names.
//
// A message is a document, and a change of its state gives it another name:
//
//	out/LANE/STATE/SEQ      a message
//	out/LANE/1/DUE/SEQ      one that is Delayed
//	order/DIGEST            the last message of an ordering key, for a day
//	lanes                   the leases
//	decided                 when people last made messages Held or Stuck, for DecisionTime
//
// Seq is made of the engine's clock. A message with an ordering key also follows
// the last one of its key, whose document its transaction reads and writes, so
// messages of a key that are put at once conflict, and all but one begin again.
type Publishing[Tx any] struct {
	Transactions *Transactions[Tx]

	// Queue is the Engine of the Transactions.
	Queue QueueEngine[Tx]

	// MaxDoc is how many bytes a document may have. It is more than 200 KiB.
	MaxDoc int

	// Lags declares that Queued may be behind. Then a message is read only when the
	// one before it, of its ordering key, is known to be gone or is read too.
	Lags bool

	seq  sequence
	seen memory
	mean atomic.Int64 // about the size of the messages that were read last; 0: not known
}

// roomForReason is what a message leaves of MaxDoc for reasons why it failed.
const roomForReason = 96 << 10

// message begins the text of a document. The body follows.
type message struct {
	ID       string
	Topic    string
	Order    string `json:",omitempty"`
	Time     time.Time
	Header   [][2]anyText `json:",omitempty"`
	Cause    anyText      `json:",omitempty"`
	Created  Instant
	Changed  Instant       `json:",omitempty"`
	Due      Instant       `json:",omitempty"`
	Wait     time.Duration `json:",omitempty"` // the delay of which Due is the end
	Attempts int           `json:",omitempty"`
	Reason   anyText       `json:",omitempty"`

	// Before was the last message of the ordering key that was Pending when this one
	// was put.
	Before *DocName `json:",omitempty"`

	// Damage is why the message could not be read when its state was changed. Its body
	// is then all of what was stored.
	Damage string `json:",omitempty"`

	body   []byte
	damage error // why it cannot be read now
}

// readMessage reads a message. One that is damaged keeps no other from being read,
// so it is returned as well, with what its name says of it.
func readMessage(at place, doc NamedDoc) message {
	var m message
	begin, body, _ := bytes.Cut(doc.Text, []byte("\n"))
	err := doc.Damage
	if err == nil {
		err = json.Unmarshal(begin, &m)
	}
	if err == nil && m.Before != nil {
		_, err = placeOf(*m.Before)
	}
	switch {
	case err == nil && m.Damage != "":
		err = errors.New(m.Damage)
	case err == nil && (m.ID == "" || m.Topic == ""):
		err = errors.New("it has no ID or no topic")
	case err == nil:
		m.body = body
		return m
	}
	m = message{Attempts: m.Attempts, Reason: m.Reason, Changed: m.Changed, Created: at.created(), Due: dueOf(doc.Name), Wait: math.MaxInt64,
		Damage: err.Error(), body: body, damage: fmt.Errorf("%w: the message %s: %w", once.ErrCorrupt, doc.Name, err)}
	if m.Changed == 0 { // it was put as it is
		m.body = doc.Text
	}
	return m
}

// created returns about when a message was put, which its number tells.
func (at place) created() Instant { return Instant(at.seq>>seqBits + seqEpoch) }

// dueOf returns when a Delayed message is due, which its name tells, too.
func dueOf(name string) Instant {
	parts := strings.Split(name, "/")
	if len(parts) != 5 {
		return 0
	}
	at, _ := strconv.ParseInt(parts[3], 16, 64)
	return Instant(at)
}

// text encodes a message in up to limit bytes, for which its Reason is cut.
func (m message) text(limit int) ([]byte, error) {
	for {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text) // which ends with a line break
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(m); err != nil {
			return nil, err
		}
		if text.Len()+len(m.body) <= limit || m.Reason == "" {
			return append(text.Bytes(), m.body...), nil
		}
		m.Reason = anyText(strings.ToValidUTF8(string(m.Reason[:len(m.Reason)/2]), ""))
	}
}

// place identifies a message in the outbox.
type place struct {
	lane  int
	state store.OutgoingState
	seq   int64
	hint  uint64 // of the Place of its document: messages with different ones can have the same Seq
}

// hintOf returns the hint of a Place.
func hintOf(name string) uint64 {
	if name == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

// queue is how the names of messages in a lane and a state begin.
func queue(lane int, state store.OutgoingState) string {
	return fmt.Sprintf(messagePrefix+"%x/%d/", lane, state)
}

// name is the name of the document.
func (at place) name(due Instant) string {
	name := queue(at.lane, at.state)
	if at.state == store.Delayed {
		name += fmt.Sprintf("%016x/", max(due, 0))
	}
	return name + fmt.Sprintf("%016x", at.seq)
}

// placeOf reads the name of a document.
func placeOf(doc DocName) (at place, err error) {
	parts := strings.Split(doc.Name, "/")
	if len(parts) < 4 {
		return at, fmt.Errorf("%w: %q is not the name of a message", once.ErrCorrupt, doc.Name)
	}
	lane, err1 := strconv.ParseUint(parts[1], 16, 4)
	state, err2 := strconv.ParseUint(parts[2], 10, 8)
	seq, err3 := strconv.ParseInt(parts[len(parts)-1], 16, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return at, fmt.Errorf("%w: %q is not the name of a message: %w", once.ErrCorrupt, doc.Name, err)
	}
	return place{int(lane), store.OutgoingState(state), seq, hintOf(doc.Place)}, nil
}

// isKnown reports whether there can be a message at a place.
func (at place) isKnown() bool {
	return at.lane >= 0 && at.lane < store.Lanes && at.state >= store.Pending && at.state <= store.Published && at.seq > 0
}

// sequence assigns numbers that rise.
type sequence struct {
	mu   sync.Mutex
	last int64
}

// Numbers are microseconds since 2020, and bits that others who put messages at
// the same time have chosen differently.
const (
	seqEpoch = 1577836800_000_000
	seqBits  = 10
)

// next returns a number above after, and above all that it has returned.
func (s *sequence) next(now Now, after int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max((int64(now.Changed())-seqEpoch)<<seqBits, s.last+1, after+1) + chance.N[int64](1<<seqBits)
	return s.last
}

// memory is what a store knows of messages that it has read: where they are, and
// which of them are gone, which an index that is behind still has.
type memory struct {
	mu     sync.Mutex
	recent map[place]remembered
	older  map[place]remembered
}

type remembered struct {
	at      DocName
	version string
	fate    fate
}

// fate is what became of a message under a name.
type fate int

const (
	present fate = iota // as far as is known
	moved               // it is gone, and may have another name
	ended               // it is gone, or Published
)

// maxRemembered bounds each of the two generations.
const maxRemembered = 32 << 10

func (m *memory) keep(at place, is remembered) {
	if len(m.recent) >= maxRemembered || m.recent == nil {
		m.older, m.recent = m.recent, make(map[place]remembered)
	}
	m.recent[at] = is
}

func (m *memory) find(at place) (is remembered, ok bool) {
	if is, ok = m.recent[at]; !ok {
		is, ok = m.older[at]
	}
	return is, ok
}

func (m *memory) of(at place) (is remembered, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.find(at)
}

// saw notes that a message was read, unless it has gone meanwhile.
func (m *memory) saw(at place, doc NamedDoc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if is, _ := m.find(at); is.fate == present || is.version != doc.Version {
		m.keep(at, remembered{at: doc.DocName, version: doc.Version})
	}
}

// end notes what became of a message. The version is that which it had, or empty
// if it is the one that was read last.
func (m *memory) end(at place, doc DocName, version string, f fate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	is, _ := m.find(at)
	m.keep(at, remembered{at: doc, version: cmp.Or(version, is.version), fate: max(f, is.fate)})
	if at.state != store.Pending && f == ended { // by that name, those after it know it
		at.state = store.Pending
		is, _ := m.find(at)
		m.keep(at, remembered{at: DocName{doc.Place, at.name(0)}, version: is.version, fate: ended})
	}
}

// doubt notes that a message has probably gone. It is read by its name before it is
// taken for present.
func (m *memory) doubt(at place, doc DocName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if is, _ := m.find(at); is.fate == present {
		m.keep(at, remembered{at: doc, fate: moved})
	}
}

// order is the document of an ordering key.
type order struct {
	Last    int64    // the Seq of its last message
	Pending *DocName // its last message that was Pending when it was put
}

// keepOrder is how long the document of an ordering key is kept. It is longer
// than an index may be behind, or clocks may differ.
const keepOrder = 24 * time.Hour

func orderDoc(key string) string { return fmt.Sprintf("order/%x", sha256.Sum256([]byte(key))) }

// PutTx writes messages in the caller's transaction.
func (p *Publishing[Tx]) PutTx(ctx context.Context, tx Tx, ms []store.Outgoing) error {
	for i := range ms {
		if err := ms[i].Message.Check(); err != nil {
			return fmt.Errorf("%w: %w", once.ErrInvalid, err)
		}
	}
	d, now, err := docsIn(ctx, p.Transactions, p.Queue, tx, p.MaxDoc)
	if err != nil || len(ms) == 0 {
		return err
	}
	if d.place, err = p.Queue.PlaceOf(tx); err != nil {
		return err
	}
	for i := range ms {
		if err := p.put(ctx, d, now, ms[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Publishing[Tx]) put(ctx context.Context, d docs[Tx], now Now, out store.Outgoing) error {
	at := place{lane: store.Lane(&out.Message)}
	m := message{ID: out.Message.ID, Topic: out.Message.Topic, Order: out.Message.OrderingKey, Time: out.Message.Time,
		Cause: anyText(out.Cause), Created: now.Changed(), body: out.Message.Body}
	for name, value := range out.Message.Header {
		m.Header = append(m.Header, [2]anyText{anyText(name), anyText(value)})
	}
	if out.Delay > 0 {
		at.state = store.Delayed
		m.Due, m.Wait = now.In(out.Delay), out.Delay
	}
	var of order
	if m.Order != "" {
		if _, err := d.read(ctx, orderDoc(m.Order), &of); err != nil {
			return err
		}
		m.Before = of.Pending
	}
	at.seq = p.seq.next(now, of.Last)
	of.Last = at.seq
	name := at.name(m.Due)
	if m.Order != "" {
		if at.state == store.Pending {
			of.Pending = &DocName{d.place, name}
		}
		if err := d.writeUntil(orderDoc(m.Order), of, now.In(keepOrder)); err != nil {
			return err
		}
	}
	text, err := m.text(p.MaxDoc)
	if limit := p.MaxDoc - roomForReason; err == nil && len(text) > limit {
		err = fmt.Errorf("%w: message %q has %d bytes with its headers, and the store takes %d: store large content elsewhere, and send "+
			"a reference", once.ErrInvalid, m.ID, len(text), limit)
	}
	if err != nil {
		return err
	}
	return d.create(name, text)
}

// outgoing returns a message as its readers see it.
func (m *message) outgoing(at place, now Now, bodiless bool) store.Outgoing {
	is := store.Outgoing{Lane: at.lane, Seq: at.seq, State: at.state, Hint: at.hint, Attempts: m.Attempts, Reason: string(m.Reason),
		Created: m.Created.Time(), Cause: string(m.Cause), Message: broker.Message{ID: m.ID, Topic: m.Topic, OrderingKey: m.Order, Time: m.Time}}
	if m.Changed != 0 {
		is.Changed = m.Changed.Time()
	}
	if at.state == store.Delayed {
		is.Delay = m.left(now)
	}
	if is.Unopened = m.damage; bodiless {
		return is
	}
	is.Message.Body = m.body
	for _, pair := range m.Header {
		if is.Message.Header == nil {
			is.Message.Header = make(map[string]string)
		}
		is.Message.Header[string(pair[0])] = string(pair[1])
	}
	return is
}

// left is the time until a message is due.
func (m *message) left(now Now) time.Duration { return min(now.AtMostUntil(m.Due), m.Wait) }

// Sent ends messages that were published. There is no archive, so store.Archive
// deletes.
func (p *Publishing[Tx]) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	switch then {
	case store.Delete, store.Archive:
		return p.RemoveOutgoing(ctx, relay, ms)
	case store.Keep:
		return p.change(ctx, relay, ms, store.Published, func(*message, store.Outgoing) {})
	}
	return 0, fmt.Errorf("%w: a message that was published has no ending %d", once.ErrInvalid, then)
}

// MoveOutgoing changes the state of messages, and writes their Attempts and
// Reason.
func (p *Publishing[Tx]) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	if err := checkMoved(ms, to); err != nil {
		return 0, err
	}
	if relay == [16]byte{} && (to == store.Held || to == store.Stuck) && len(ms) > 0 {
		if err := p.noteDecision(ctx); err != nil {
			return 0, err
		}
	}
	return p.change(ctx, relay, ms, to, func(is *message, m store.Outgoing) {
		is.Attempts, is.Reason, is.Wait = m.Attempts, anyText(m.Reason), m.Delay
	})
}

// RemoveOutgoing deletes messages in any state.
func (p *Publishing[Tx]) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (int, error) {
	found, err := p.find(ctx, relay, ms)
	if err != nil {
		return 0, err
	}
	moves := make([]Move, len(found))
	for i, f := range found {
		moves[i] = Move{DocName: f.doc}
	}
	return p.move(ctx, found, moves)
}

// change gives messages another state.
func (p *Publishing[Tx]) change(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState,
	change func(*message, store.Outgoing)) (int, error) {

	found, err := p.find(ctx, relay, ms)
	if err != nil {
		return 0, err
	}
	now, err := p.Transactions.now(ctx)
	if err != nil {
		return 0, err
	}
	moves := make([]Move, len(found))
	err = inParallel(len(found), func(i int) error {
		f := found[i]
		doc, err := p.Queue.LoadDoc(ctx, f.doc)
		if err == nil && doc.Version == "" {
			p.seen.doubt(f.place, f.doc)
		}
		if err != nil || doc.Version == "" {
			return err
		}
		is := readMessage(f.place, NamedDoc{f.doc, doc})
		change(&is, f.message)
		moves[i], err = p.moveTo(NamedDoc{f.doc, doc}, is, f.place, to, now)
		return err
	})
	if err != nil {
		return 0, err
	}
	return p.move(ctx, found, moves)
}

// moveTo returns the move that gives a message another state.
func (p *Publishing[Tx]) moveTo(doc NamedDoc, is message, at place, to store.OutgoingState, now Now) (Move, error) {
	is.Changed, is.Due, at.state = max(now.Changed(), is.Created, is.Changed), 0, to
	if to == store.Delayed {
		is.Due = now.In(is.Wait)
	} else {
		is.Wait = 0
	}
	if is.damage != nil {
		is.body = is.body[:min(len(is.body), max(p.MaxDoc-2*roomForReason, 0))]
	}
	text, err := is.text(p.MaxDoc)
	m := Move{DocName: doc.DocName, Over: doc.Version, To: at.name(is.Due), Is: text}
	if doc.Damage != nil {
		m.Over = "" // what is damaged may be the version
	}
	return m, err
}

// move makes moves of messages, of which empty ones are left out, and returns how
// many were made.
func (p *Publishing[Tx]) move(ctx context.Context, of []found, moves []Move) (changed int, err error) {
	var places []place
	var all []Move
	for i, m := range moves {
		if m.Name != "" {
			places, all = append(places, of[i].place), append(all, m)
		}
	}
	if len(all) == 0 {
		return 0, nil
	}
	made, err := p.Queue.Move(ctx, all)
	for i := range made {
		if made[i] {
			changed++
		}
		switch {
		case made[i] && all[i].To == all[i].Name:
			p.seen.saw(places[i], NamedDoc{DocName: all[i].DocName}) // its version is not known
		case made[i]:
			p.seen.end(places[i], all[i].DocName, all[i].Over, fateOf(all[i]))
		case err == nil: // somebody else has changed the message, or was about to
			p.seen.doubt(places[i], all[i].DocName)
		}
	}
	return changed, err
}

// fateOf returns what a move makes of a message.
func fateOf(m Move) fate {
	if to, err := placeOf(DocName{m.Place, m.To}); err == nil && to.state != store.Published {
		return moved
	}
	return ended
}

// found is a message that a caller names, and its document.
type found struct {
	place
	message store.Outgoing
	doc     DocName
}

// find returns the documents of messages that a relay may change. It may return
// documents that are gone.
func (p *Publishing[Tx]) find(ctx context.Context, relay [16]byte, ms []store.Outgoing) (all []found, err error) {
	may, err := p.mayChange(ctx, relay)
	if err != nil {
		return nil, err
	}
	known := make(map[place]bool)
	for _, m := range ms {
		at := place{m.Lane, m.State, m.Seq, m.Hint}
		if at.isKnown() && may(at.lane) && !known[at] {
			all = append(all, found{place: at, message: m})
		}
		known[at] = true
	}
	err = inParallel(len(all), func(i int) error {
		f := &all[i]
		is, ok := p.seen.of(f.place)
		if ok && is.fate == present {
			f.doc = is.at
			return nil
		}
		doc, err := p.look(ctx, f.place)
		if f.doc = doc; doc.Name != "" {
			f.place.hint = hintOf(doc.Place)
		}
		return err
	})
	return slices.DeleteFunc(all, func(f found) bool { return f.doc.Name == "" }), err
}

// look finds the document of a message. Without a hint it finds none if there are
// several.
func (p *Publishing[Tx]) look(ctx context.Context, at place) (found DocName, err error) {
	prefix, limit := at.name(0), defaultPage
	if at.state == store.Delayed {
		prefix, limit = queue(at.lane, at.state), largestPage
	}
	for after := ""; ; {
		page, err := p.Queue.Queued(ctx, prefix, after, limit)
		if err != nil {
			return DocName{}, err
		}
		for _, doc := range page {
			after = doc.Name
			is, err := placeOf(doc.DocName)
			if err == nil && is == at {
				return doc.DocName, nil
			}
			if at.hint != 0 || err != nil || is.lane != at.lane || is.seq != at.seq {
				continue
			}
			if found.Name != "" {
				return DocName{}, nil
			}
			found = doc.DocName
		}
		if len(page) < limit {
			return found, nil
		}
	}
}

// WakeDelayed changes the state of Delayed messages that are due, the longest due
// first.
func (p *Publishing[Tx]) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState, limit int) (
	woken int, next time.Duration, err error) {

	if err := checkMoved(nil, to); err != nil {
		return 0, 0, err
	}
	now, err := p.Transactions.now(ctx)
	if err != nil {
		return 0, 0, err
	}
	may, err := p.mayChange(ctx, relay)
	if err != nil {
		return 0, 0, err
	}
	limit = max(limit, 0)
	var lanes [store.Lanes][]delayed
	next = time.Hour
	var more atomic.Bool
	err = inParallel(store.Lanes, func(lane int) (err error) {
		if may(lane) {
			var isCut bool
			if lanes[lane], isCut, err = p.dueIn(ctx, lane, limit, now); isCut {
				more.Store(true)
			}
		}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if more.Load() {
		next = 0
	}
	all := slices.Concat(lanes[:]...)
	slices.SortFunc(all, func(a, b delayed) int { return cmp.Compare(a.is.Due, b.is.Due) })
	var of []found
	var moves []Move
	for _, d := range all {
		left := d.is.left(now)
		if left > 0 || len(moves) == limit {
			next = min(next, left)
			break
		}
		m, err := p.moveTo(d.doc, d.is, d.place, to, now)
		if err != nil {
			return 0, 0, err
		}
		of, moves = append(of, d.found), append(moves, m)
	}
	woken, err = p.move(ctx, of, moves)
	return woken, next, err
}

// delayed is a message that waits for its time.
type delayed struct {
	found
	doc NamedDoc
	is  message
}

// dueIn returns the messages of a lane that are due, up to limit, and the one after
// them. It ends before if they have too many bytes, and more may be due.
func (p *Publishing[Tx]) dueIn(ctx context.Context, lane, limit int, now Now) (all []delayed, isCut bool, err error) {
	after, size, bytes := "", 1, 0 // most looks find that nothing is due
	for {
		page, last, err := p.page(ctx, queue(lane, store.Delayed), after, size)
		if err != nil {
			return nil, false, err
		}
		for _, doc := range page {
			at, err := placeOf(doc.DocName)
			if err != nil {
				continue // nobody can name it
			}
			is := readMessage(at, doc)
			all = append(all, delayed{found{place: at}, doc, is})
			if is.left(now) > 0 || len(all) > limit {
				return all, false, nil
			}
			bytes += len(doc.Text)
		}
		if last == "" {
			return all, false, nil
		}
		if bytes > maxRead/store.Lanes {
			return all, true, nil
		}
		after, size = last, p.pageSize(defaultPage, maxRead/store.Lanes)
	}
}

// page is Queued without documents that are known to be gone. The next page comes
// after last, and there is none if that is "".
func (p *Publishing[Tx]) page(ctx context.Context, prefix, after string, limit int) (page []NamedDoc, last string, err error) {
	page, err = p.Queue.Queued(ctx, prefix, after, limit)
	if err != nil {
		return nil, "", err
	}
	if len(page) == limit {
		last = page[limit-1].Name
	}
	p.measure(page)
	if p.Lags {
		page, err = p.present(ctx, page)
	}
	return page, last, err
}

// measure learns from a page how large messages are. What is known of it falls
// slowly, so that the page after some small ones is not too large.
func (p *Publishing[Tx]) measure(page []NamedDoc) {
	bytes, before := 0, p.mean.Load()
	for _, doc := range page {
		bytes += len(doc.Text)
	}
	if n := len(page); n > 1 || n == 1 && int64(bytes) > before && before > 0 {
		p.mean.Store(max(int64(bytes/n), before-before/4))
	}
}

// present returns those documents that are not known to be gone. If one that is
// gone has another version in the index, which may be an earlier one, or be that of
// a message that got its name back, it is read.
func (p *Publishing[Tx]) present(ctx context.Context, page []NamedDoc) ([]NamedDoc, error) {
	err := inParallel(len(page), func(i int) error {
		doc := &page[i]
		at, err := placeOf(doc.DocName)
		if err != nil {
			return nil // which is left out
		}
		is, _ := p.seen.of(at)
		switch {
		case is.fate == present:
			return nil
		case is.version == doc.Version:
			doc.Doc = Doc{}
			return nil
		}
		doc.Doc, err = p.Queue.LoadDoc(ctx, doc.DocName)
		return err
	})
	return slices.DeleteFunc(page, func(doc NamedDoc) bool { return doc.Version == "" }), err
}

// ForgetOutgoing deletes Published messages that were published longer ago than
// keep. It looks at those that were put first.
func (p *Publishing[Tx]) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: ForgetOutgoing with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	now, err := p.Transactions.now(ctx)
	if err != nil {
		return 0, err
	}
	for _, lane := range chance.Perm(store.Lanes) {
		n, err := p.forgetIn(ctx, lane, keep, limit-forgotten, now)
		if forgotten += n; err != nil || forgotten == limit {
			return forgotten, err
		}
	}
	return forgotten, nil
}

func (p *Publishing[Tx]) forgetIn(ctx context.Context, lane int, keep time.Duration, limit int, now Now) (forgotten int, err error) {
	const looks = 10
	for after, look := "", 0; look < looks && forgotten < limit; look++ {
		page, err := p.Queue.Queued(ctx, queue(lane, store.Published), after, defaultPage)
		if err != nil {
			return forgotten, err
		}
		var of []found
		var moves []Move
		for _, doc := range page {
			after = doc.Name
			at, err := placeOf(doc.DocName)
			if err != nil {
				continue // nobody can name it
			}
			is := readMessage(at, doc)
			if is.damage == nil && now.AtLeastSince(is.Changed) > keep && forgotten+len(moves) < limit {
				of, moves = append(of, found{place: at}), append(moves, Move{DocName: doc.DocName, Over: doc.Version})
			}
		}
		n, err := p.move(ctx, of, moves)
		if forgotten += n; err != nil || len(page) < defaultPage {
			return forgotten, err
		}
	}
	return forgotten, nil
}

// OutboxDepth returns how many messages are in each state except Published. From
// count on, it stops counting, and returns as many as it has counted.
func (p *Publishing[Tx]) OutboxDepth(ctx context.Context, count int) (depths []store.Depth, err error) {
	now, err := p.Transactions.now(ctx)
	if err != nil {
		return nil, err
	}
	for state := store.Pending; state < store.Published; state++ {
		d := store.Depth{State: state}
		var mu sync.Mutex
		err := inParallel(store.Lanes, func(lane int) error {
			for after := ""; ; {
				page, last, err := p.page(ctx, queue(lane, state), after, p.pageSize(largestPage, maxRead/store.Lanes))
				if err != nil {
					return err
				}
				mu.Lock()
				for _, doc := range page {
					d.Count++
					if at, err := placeOf(doc.DocName); err == nil {
						d.Oldest = max(d.Oldest, now.AtLeastSince(at.created()))
					}
				}
				d.Estimated = d.Count >= max(count, 1)
				enough := d.Estimated
				mu.Unlock()
				if after = last; enough || last == "" {
					return nil
				}
			}
		})
		if err != nil {
			return nil, err
		}
		if d.Count > 0 {
			depths = append(depths, d)
		}
	}
	return depths, nil
}

func checkMoved(ms []store.Outgoing, to store.OutgoingState) error {
	if to < store.Pending || to > store.Published {
		return fmt.Errorf("%w: a message in the outbox has no state %d", once.ErrInvalid, to)
	}
	for _, m := range ms {
		if len(m.Reason) > longestText {
			return fmt.Errorf("%w: the Reason of message %.40q has %d bytes, the limit is %d: shorten it", once.ErrInvalid, m.Message.ID,
				len(m.Reason), longestText)
		}
	}
	return nil
}

// inParallel calls do for 0 to n-1, a few at once, and returns the first error.
func inParallel(n int, do func(int) error) error {
	const atOnce = 16
	var calling sync.WaitGroup
	errs := make([]error, n)
	for worker := range min(n, atOnce) {
		calling.Add(1)
		go func() {
			defer calling.Done()
			for i := worker; i < n; i += atOnce {
				if errs[i] = do(i); errs[i] != nil {
					return
				}
			}
		}()
	}
	calling.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
