package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// item is a delivery on its way through the consumer.
type item struct {
	broker.Delivery
	lane     string   // items of one lane are dealt with in order; empty: alone
	order    string   // the ordering key
	key      once.Key // of the work; zero if wrong is not nil
	alone    bool     // it is to be parked without having run, and in a transaction of its own
	alias    string   // its ID on the shelf; empty: its own
	wrong    error    // why it has no key
	attempts once.Key // whose attempts are those at the item
	input    []byte
	counted  bool  // this delivery is counted as an attempt, or need not be
	prepaid  bool  // the attempt at it is counted already, if it fails
	ran      bool  // its handler was called
	deadly   bool  // perhaps: a goroutine that handled it has ended
	tries    int   // attempts of this delivery that failed
	failed   int64 // attempts that are counted, as far as is known
	debt     int64 // what the store has still to count; below zero, to take back
	there    bool  // it was on the shelf when that was last looked at, or a copy of it
	waiting  bool  // and waited there
	sought   int   // how often its lane was, when it was received
	unsure   bool  // whether a commit with its token took place is not known
	token    [16]byte
}

// result is what has become of an item.
type result struct {
	kind   resultKind
	after  time.Duration // again
	reason string        // what stands in its way
}

type resultKind int

const (
	again     resultKind = iota // not settled: another try is to come, here
	handled                     // committed
	prevented                   // committed, as a duplicate by a rule of the business
	duplicate                   // was handled before
	failing                     // failed: to be tried again, here or on the shelf
	behind                      // to be put aside, behind another message of its ordering key
	hopeless                    // to be parked
	shelved                     // put aside, in the store
	parked                      // put aside for a person
	sought                      // it comes again, because its partition is read again
)

// newItem gives a delivery its key and its place.
func (s *consumerRun) newItem(d broker.Delivery) *item {
	it := &item{Delivery: d, counted: !d.Redelivered || d.Message.Attempt == 1, token: name.Token()}
	it.key = once.Key{Operation: s.keys}
	var err error
	if f := guarded(func() (err error) {
		it.order, it.input = s.OrderBy(d.Message), s.Input(d.Message)
		it.key.ID, err = s.Key(d.Message)
		return err
	}); f != nil {
		err = f.err
	} else {
		err = it.key.Validate()
	}
	if name.Check("", it.order) != nil { // the shelf takes texts
		it.order = "digest-" + name.Format(name.Digest(it.order))
	}
	if it.wrong = err; err != nil {
		unique := name.Token()
		if d.Position != nil { // the same when it comes again
			unique = it.place()
		}
		it.alias = "no-id-" + name.Format(unique)
	}
	it.lane, it.attempts = it.order, it.key
	it.attempts.Operation += attemptsSuffix
	if s.Checkpoint && d.Position != nil {
		it.lane = laneOf(d.Position)
		it.attempts.ID = name.Format(it.place())
	} else if err != nil {
		it.attempts.ID = name.Format(digest(d.Message))
	}
	return it
}

// attemptsSuffix makes an operation for the counts of attempts that neither a
// step of a handler nor another consumer has: steps come after a slash, and the
// name of a consumer, or of its rebuild, has no @.
const attemptsSuffix = "@@attempts"

// laneOf is the lane of a partition, whose name may be empty.
func laneOf(p *broker.Position) string { return "partition " + p.Partition }

func (s *consumerRun) fingerprint(it *item) []byte {
	if it.input == nil {
		return nil
	}
	return checksum.Fingerprint(s.store.Options().Secret, it.key.UUID(), it.input)
}

// cause is the key whose work put the message; zero: none that is known.
func (it *item) cause() [16]byte { return name.Parse(it.Message.Header[store.KeyHeader]) }

// workOn is the work on an item.
func workOn[T any](op *once.Operation[T], it *item) once.Work[T] {
	work := op.For(it.key.ID).CausedBy(it.Message.Header[store.KeyHeader])
	if it.input != nil {
		work = work.Input(it.input)
	}
	return work
}

// What a message was before it was put aside, where that had to be changed.
const (
	headerID    = "once-original-id"
	headerOrder = "once-original-ordering-key"
)

// aside is the item as it is put aside. Its ordering key there is what it is ordered by, and its ID one that no other
// message on the shelf has.
func (s *consumerRun) aside(it *item, state store.ShelfState, due time.Duration, reason string) store.Shelved {
	m := *it.Message
	m.Header = maps.Clone(m.Header)
	change := func(header string, value *string, to string) {
		if *value == to {
			return
		}
		if m.Header == nil {
			m.Header = make(map[string]string)
		}
		m.Header[header], *value = *value, to
	}
	change(headerOrder, &m.OrderingKey, it.order)
	if it.alias != "" {
		change(headerID, &m.ID, it.alias)
	}
	if name.Check("", m.Topic) != nil || m.Topic == "" {
		m.Topic = "digest-" + name.Format(name.Digest(m.Topic))
	}
	id := it.key.ID
	if it.wrong != nil {
		id = ""
	}
	return store.Shelved{Consumer: s.keys, Key: id, Message: m, Origin: shortened(it.Origin), State: state, Due: due,
		Attempts: it.made(), Reason: name.Reason(reason)}
}

// made is how many attempts were made at an item: one that was counted in advance, and then not begun, is none.
func (it *item) made() int {
	if it.prepaid && !it.ran {
		return int(it.failed) - 1
	}
	return int(it.failed)
}

// original is a message as it was before it was put aside.
func original(m broker.Message) broker.Message {
	m.Header = maps.Clone(m.Header)
	for header, value := range map[string]*string{headerID: &m.ID, headerOrder: &m.OrderingKey} {
		if was, ok := m.Header[header]; ok {
			*value = was
			delete(m.Header, header)
		}
	}
	return m
}

func shortened(origin string) string {
	origin = strings.ToValidUTF8(strings.ReplaceAll(origin, "\x00", ""), "")
	return strings.ToValidUTF8(origin[:min(len(origin), name.Limit)], "")
}

// place is a digest of where an item of a log is.
func (it *item) place() [16]byte {
	return name.Digest(it.Position.Log, it.Position.Partition, strconv.FormatInt(it.Position.Offset, 10))
}

// nameOnShelf gives items another ID if the shelf has another message of their ID, or had this one before. It is not for the
// inside of a transaction: it would take a second connection.
func (s *consumerRun) nameOnShelf(ctx context.Context, items ...*item) error {
	if s.shelf == nil {
		return nil
	}
	q := store.ShelfQuery{Consumer: s.keys, Limit: 1000}
	for _, it := range items {
		if it.alias == "" {
			q.IDs = append(q.IDs, it.Message.ID, it.otherName())
		} else {
			q.IDs = append(q.IDs, it.alias)
		}
	}
	if len(q.IDs) == 0 {
		return nil
	}
	found, err := s.shelf.Shelved(ctx, q)
	if err != nil {
		return err
	}
	there := make(map[string]store.Shelved)
	for _, m := range found {
		there[m.Message.ID] = m
	}
	for _, it := range items {
		if it.alias == "" {
			it.alias = it.freeName(there)
		}
		m, found := there[cmp.Or(it.alias, it.Message.ID)]
		it.there = found && it.isOpen(m)
		it.waiting = it.there && m.State == store.Waiting
	}
	return nil
}

// otherName is the ID on the shelf of an item whose own is another message's.
func (it *item) otherName() string {
	sum := name.Format(digest(it.Message))
	return it.Message.ID[:min(len(it.Message.ID), name.Limit-len(sum)-1)] + "#" + sum
}

// freeName is a name that is free, or that this very message has; empty: its ID.
func (it *item) freeName(there map[string]store.Shelved) string {
	own, taken := there[it.Message.ID]
	if !taken || it.isOpen(own) {
		return ""
	}
	if other, taken := there[it.otherName()]; !taken || it.isOpen(other) {
		return it.otherName()
	}
	return "again-" + name.Format(name.Token())
}

// isOpen reports whether a message on the shelf is this one, and still waits.
func (it *item) isOpen(m store.Shelved) bool {
	was := original(m.Message)
	return (m.State == store.Waiting || m.State == store.Parked) && digest(&was) == digest(it.Message)
}

// digest tells messages apart that have the same place in a log.
func digest(m *broker.Message) [16]byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(m.ID), []byte(m.Topic), []byte(m.OrderingKey), m.Body} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return [16]byte(h.Sum(nil)[:16])
}

func messages(items []*item) []*broker.Message {
	ms := make([]*broker.Message, len(items))
	for i, it := range items {
		ms[i] = it.Message
	}
	return ms
}
