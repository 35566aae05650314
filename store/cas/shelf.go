package cas

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

// The shelf consists of documents:
//
//	shelf                      the last Seq, and who has messages
//	shelf/CONSUMER             a line for each message, in their order
//	shelf/CONSUMER/SEQ         what changes of a message, and the rest but for its content
//	shelf/CONSUMER/SEQ/PART    a part of its content, which does not change; or of a
//	                           large message that has this number for its parts
type shelf struct {
	Last      int64
	Consumers []string
}

const shelfDoc = "shelf"

func linesDoc(consumer string) string { return docOf("shelf", consumer) }

func headDoc(consumer string, seq int64) string {
	return linesDoc(consumer) + "/" + strconv.FormatInt(seq, 10)
}

func partDoc(consumer string, seq int64, part int) string {
	return headDoc(consumer, seq) + "/" + strconv.Itoa(part)
}

// line is what queries select messages by. It never becomes longer, so that each
// message of a full list can still be changed.
type line struct {
	Seq     int64
	ID      string
	Order   string `json:",omitempty"`
	Topic   string `json:",omitempty"`
	State   store.ShelfState
	Due     Instant // late rather than early, because a handler may have asked for the delay
	Updated Instant
}

func (l line) open(parkedToo bool) bool {
	return l.State == store.Waiting || l.State == store.Parked && parkedToo
}

// head is a message without its content.
type head struct {
	line
	Version  int64
	Wait     time.Duration `json:",omitempty"` // the delay of which Due is the end
	Key      string
	Origin   anyText
	Attempts int
	Reason   anyText
	History  anyText
	Created  Instant
	Parts    int
	Content  int64 `json:",omitempty"` // the number that its parts have, if it is not its Seq

	// Damage is set if the head was rebuilt from its line, because it could not be
	// read: what else it had is lost, such as how many parts there are.
	Damage string `json:",omitempty"`
}

// rebuilt returns the head of a message that cannot be read, if that is why.
func rebuilt(l line, version int64, damage error) (h head, ok bool) {
	return head{line: l, Version: version, Damage: damage.Error()}, errors.Is(damage, once.ErrCorrupt)
}

// parts returns the names of the parts of a message.
func (h head) parts(consumer string) (names []string) {
	for part := range h.Parts {
		names = append(names, partDoc(consumer, cmp.Or(h.Content, h.Seq), part))
	}
	return names
}

// content begins what Shelve writes of a message in parts. The body follows.
type content struct {
	Header [][2]anyText
	Time   time.Time
}

// anyText is a text that may have any bytes, which JSON keeps only in slices.
type anyText string

func (t anyText) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal([][]byte{[]byte(t)})
}

func (t *anyText) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		return json.Unmarshal(text, (*string)(t))
	}
	var bytes [][]byte
	if err := json.Unmarshal(text, &bytes); err != nil || len(bytes) != 1 {
		return fmt.Errorf("a text is %s (%w)", text, err)
	}
	*t = anyText(bytes[0])
	return nil
}

// Shelve sets messages aside, many of them in several transactions. If it fails
// between two, a repetition goes on where it ended.
func (c *Shelving[Tx]) Shelve(ctx context.Context, ms []store.Shelved) error {
	for _, m := range ms {
		if err := checkShelved(m); err != nil {
			return err
		}
	}
	for len(ms) > 0 {
		parts, err := c.split(ms[0].Message)
		if err != nil {
			return err
		}
		if len(parts) > 1 {
			if err := c.shelveLarge(ctx, ms[0], parts); err != nil {
				return err
			}
			ms = ms[1:]
			continue
		}
		n, bytes := 1, roomOf(ms[0])
		for n < min(len(ms), maxAtOnce) && bytes+roomOf(ms[n]) <= c.MaxDoc/4 { // encoded, it is more
			bytes += roomOf(ms[n])
			n++
		}
		if err := c.alone(ctx, func(tx Tx) error { return c.shelveTx(ctx, tx, ms[:n]) }); err != nil {
			return err
		}
		ms = ms[n:]
	}
	return nil
}

// roomOf returns about how many bytes a message needs.
func roomOf(m store.Shelved) int {
	n := len(m.Message.Body) + len(m.Reason) + len(m.History) + len(m.Origin)
	for name, value := range m.Message.Header {
		n += len(name) + len(value)
	}
	return n
}

// shelveLarge sets a message aside whose content may be too large for one
// transaction. Its parts are written first, each on its own, under a number that
// nothing else has. If the process dies before the message is on the shelf, they
// stay without use.
func (c *Shelving[Tx]) shelveLarge(ctx context.Context, m store.Shelved, parts [][]byte) error {
	var lines []line
	if err := c.load(ctx, linesDoc(m.Consumer), &lines); err != nil || hasID(lines, m.Message.ID) {
		return err
	}
	var number int64
	err := c.alone(ctx, func(tx Tx) error {
		d, now, err := c.in(ctx, tx)
		if err != nil {
			return err
		}
		s, err := c.readShelf(ctx, d, now)
		if err != nil {
			return err
		}
		s.Last++
		number = s.Last
		return d.write(shelfDoc, s)
	})
	for i := 0; i < len(parts) && err == nil; i++ {
		err = c.writeAlone(ctx, partDoc(m.Consumer, number, i), parts[i])
	}
	if err != nil {
		return err
	}
	added := false
	err = c.alone(ctx, func(tx Tx) error {
		d, now, err := c.in(ctx, tx)
		if err == nil {
			added, err = c.enter(ctx, d, now, m, head{Parts: len(parts), Content: number})
		}
		return err
	})
	for i := 0; i < len(parts) && err == nil && !added; i++ { // it was set aside meanwhile
		err = c.writeAlone(ctx, partDoc(m.Consumer, number, i), nil)
	}
	return err
}

// writeAlone writes a document in a transaction of its own. Nil deletes it.
func (c *Shelving[Tx]) writeAlone(ctx context.Context, name string, value any) error {
	return c.alone(ctx, func(tx Tx) error {
		d, _, err := c.in(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := d.read(ctx, name, new([]byte)); err != nil {
			return err
		}
		return d.write(name, value)
	})
}

func hasID(lines []line, id string) bool {
	return slices.ContainsFunc(lines, func(l line) bool { return l.ID == id })
}

// maxAtOnce is how many messages Shelve puts into one transaction, each in two
// documents or more: the engines take a hundred.
const maxAtOnce = 25

// ShelveTx is like Shelve in the caller's transaction.
func (c *Consuming[Tx]) ShelveTx(ctx context.Context, tx Tx, ms []store.Shelved) error {
	return c.shelveTx(ctx, tx, ms)
}

func (c *Shelving[Tx]) shelveTx(ctx context.Context, tx Tx, ms []store.Shelved) error {
	for _, m := range ms {
		if err := checkShelved(m); err != nil {
			return err
		}
	}
	d, now, err := c.in(ctx, tx)
	for i := 0; i < len(ms) && err == nil; i++ {
		err = c.shelve(ctx, d, now, ms[i])
	}
	return err
}

func (c *Shelving[Tx]) shelve(ctx context.Context, d docs[Tx], now Now, m store.Shelved) error {
	parts, err := c.split(m.Message)
	if err != nil {
		return err
	}
	h := head{Parts: len(parts)}
	added, err := c.enter(ctx, d, now, m, h)
	if err != nil || !added {
		return err
	}
	var s shelf
	if _, err := d.read(ctx, shelfDoc, &s); err != nil {
		return err
	}
	h.Seq = s.Last
	for i, name := range h.parts(m.Consumer) {
		if _, err := d.read(ctx, name, new([]byte)); err != nil {
			return err
		}
		if err := d.write(name, parts[i]); err != nil {
			return err
		}
	}
	return nil
}

// enter adds a message to the shelf, whose parts are written apart. It reports
// false if it is there already.
func (c *Shelving[Tx]) enter(ctx context.Context, d docs[Tx], now Now, m store.Shelved, h head) (added bool, err error) {
	var lines []line
	if _, err := d.read(ctx, linesDoc(m.Consumer), &lines); err != nil || hasID(lines, m.Message.ID) {
		return false, err
	}
	s, err := c.readShelf(ctx, d, now)
	if err != nil {
		return false, err
	}
	s.Last++
	if !slices.Contains(s.Consumers, m.Consumer) {
		s.Consumers = append(s.Consumers, m.Consumer)
	}
	h.line = line{Seq: s.Last, ID: m.Message.ID, Order: m.Message.OrderingKey, Topic: m.Message.Topic, State: m.State,
		Due: dueIn(m.Due, now.Changed(), now), Updated: now.Changed()}
	h.Wait, h.Version, h.Key, h.Origin, h.Attempts, h.Created = max(m.Due, 0), 1, m.Key, anyText(m.Origin), m.Attempts, now.Changed()
	h.Reason, h.History = anyText(m.Reason), anyText(m.History)
	for name, value := range map[string]any{
		shelfDoc:                   s,
		linesDoc(m.Consumer):       append(lines, h.line),
		headDoc(m.Consumer, h.Seq): h,
	} {
		if _, err := d.read(ctx, name, new([]byte)); err != nil && (name != shelfDoc || !errors.Is(err, once.ErrCorrupt)) {
			return false, err
		}
		if err := d.write(name, value); err != nil {
			return false, fmt.Errorf("on the shelf of %q, with %d messages before: %w", m.Consumer, len(lines), err)
		}
	}
	return true, nil
}

// split encodes the content of a message in parts that fit into documents.
func (c *Shelving[Tx]) split(m broker.Message) (parts [][]byte, err error) {
	is := content{Time: m.Time}
	for name, value := range m.Header {
		is.Header = append(is.Header, [2]anyText{anyText(name), anyText(value)})
	}
	text, err := json.Marshal(is)
	text = append(append(text, '\n'), m.Body...) // JSON has no line breaks
	return slices.Collect(slices.Chunk(text, c.MaxDoc)), err
}

// BlockedTx returns those ordering keys that have Waiting messages on the
// shelf, or Parked ones if parkedToo is set.
func (c *Consuming[Tx]) BlockedTx(ctx context.Context, tx Tx, consumer string, orderingKeys []string, parkedToo bool) (
	blocked []string, err error) {

	d, _, err := c.in(ctx, tx)
	if err != nil {
		return nil, err
	}
	var lines []line
	if is := d.changes.find(DocName{Name: linesDoc(consumer)}); is != nil && is.written {
		_, err = decodeDoc(is.Name, Doc{Text: is.Is}, &lines)
	} else {
		err = c.load(ctx, linesDoc(consumer), &lines)
	}
	for _, key := range orderingKeys {
		holds := func(l line) bool { return l.Order == key && l.open(parkedToo) }
		if key != "" && slices.ContainsFunc(lines, holds) && !slices.Contains(blocked, key) {
			blocked = append(blocked, key)
		}
	}
	return blocked, err
}

// Change writes the state of a message, if its Version has not changed since it
// was read.
func (c *Shelving[Tx]) Change(ctx context.Context, m store.Shelved) error {
	return c.alone(ctx, func(tx Tx) error { return c.changeTx(ctx, tx, m) })
}

// ChangeTx is like Change in the caller's transaction.
func (c *Consuming[Tx]) ChangeTx(ctx context.Context, tx Tx, m store.Shelved) error {
	return c.changeTx(ctx, tx, m)
}

func (c *Shelving[Tx]) changeTx(ctx context.Context, tx Tx, m store.Shelved) error {
	if err := checkState(m); err != nil {
		return err
	}
	d, now, err := c.in(ctx, tx)
	if err != nil {
		return err
	}
	var h head
	_, damage := d.read(ctx, headDoc(m.Consumer, m.Seq), &h)
	if damage != nil && !errors.Is(damage, once.ErrCorrupt) {
		return damage
	}
	if damage == nil && (h.Version == 0 || h.Version != m.Version) {
		return fmt.Errorf("%w: shelved message %d is gone, or was changed after version %d", once.ErrLeaseLost, m.Seq, m.Version)
	}
	var lines []line
	if _, err := d.read(ctx, linesDoc(m.Consumer), &lines); err != nil {
		return err
	}
	at := slices.IndexFunc(lines, func(l line) bool { return l.Seq == m.Seq })
	if at < 0 {
		if now, err := c.headNow(ctx, m.Consumer, m.Seq); err != nil || now.Version != h.Version { // it was deleted between the two reads
			return cmp.Or(err, fmt.Errorf("%w: shelved message %d is gone", once.ErrLeaseLost, m.Seq))
		}
		return fmt.Errorf("%w: shelved message %d of %q is not in the list", once.ErrCorrupt, m.Seq, m.Consumer)
	}
	if damage != nil {
		h, _ = rebuilt(lines[at], m.Version, damage)
	}
	if m.State == store.Handled && m.History == "" {
		if err := d.write(linesDoc(m.Consumer), slices.Delete(lines, at, at+1)); err != nil {
			return err
		}
		return c.remove(ctx, d, m.Consumer, h)
	}
	h.State, h.Updated = m.State, max(now.Changed(), h.Updated)
	h.Due, h.Wait = dueIn(m.Due, h.Updated, now), max(m.Due, 0)
	h.Attempts, h.Reason, h.History, h.Version = m.Attempts, anyText(m.Reason), anyText(m.History), h.Version+1
	lines[at] = h.line
	if err := d.write(linesDoc(m.Consumer), lines); err != nil {
		return err
	}
	return d.write(headDoc(m.Consumer, m.Seq), h)
}

// remove deletes the documents of a message, whose head was read.
func (c *Shelving[Tx]) remove(ctx context.Context, d docs[Tx], consumer string, h head) error {
	for i := 0; i < h.Parts || h.Damage != ""; i++ {
		name := partDoc(consumer, cmp.Or(h.Content, h.Seq), i)
		is, err := d.read(ctx, name, new([]byte))
		if err != nil && !errors.Is(err, once.ErrCorrupt) {
			return err
		}
		if h.Damage != "" && !is && err == nil { // which says how many there are
			break
		}
		if err := d.write(name, nil); err != nil {
			return err
		}
	}
	return d.write(headDoc(consumer, h.Seq), nil)
}

// ForgetShelved deletes Handled and Discarded messages that were last changed
// longer ago than keep. Each is a transaction of its own.
func (c *Shelving[Tx]) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: ForgetShelved with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	now, err := c.now(ctx)
	if err != nil {
		return 0, err
	}
	consumers, _, err := c.shelfOf(ctx, "")
	for _, consumer := range consumers {
		var lines []line
		if err := c.load(ctx, linesDoc(consumer), &lines); errors.Is(err, once.ErrCorrupt) {
			continue // which a list shows
		} else if err != nil {
			return forgotten, err
		}
		for _, l := range lines {
			if forgotten == limit {
				return forgotten, nil
			}
			if l.open(true) || now.AtLeastSince(l.Updated) <= keep {
				continue
			}
			gone, err := c.forget(ctx, consumer, l)
			if err != nil {
				return forgotten, err
			}
			if gone {
				forgotten++
			}
		}
	}
	return forgotten, err
}

// forget deletes a message if it has not changed.
func (c *Shelving[Tx]) forget(ctx context.Context, consumer string, l line) (gone bool, err error) {
	err = c.alone(ctx, func(tx Tx) error {
		d, _, err := c.in(ctx, tx)
		if err != nil {
			return err
		}
		var h head
		var lines []line
		if _, err := d.read(ctx, headDoc(consumer, l.Seq), &h); err != nil {
			is := false
			if h, is = rebuilt(l, 1, err); !is {
				return err
			}
		}
		if _, err := d.read(ctx, linesDoc(consumer), &lines); err != nil {
			return err
		}
		at := slices.Index(lines, l)
		if gone = at >= 0 && h.line == l; !gone {
			return nil
		}
		if err := d.write(linesDoc(consumer), slices.Delete(lines, at, at+1)); err != nil {
			return err
		}
		return c.remove(ctx, d, consumer, h)
	})
	return gone, err
}

// readShelf reads what a transaction adds a message to. If that is damaged, it
// begins anew after all numbers that were given out, with the registered consumers.
// Others are listed again when they set a message aside.
func (c *Shelving[Tx]) readShelf(ctx context.Context, d docs[Tx], now Now) (s shelf, err error) {
	_, err = d.read(ctx, shelfDoc, &s)
	if !errors.Is(err, once.ErrCorrupt) {
		return s, err
	}
	c.Options().Logger.WarnContext(ctx, "inbox: the list of consumers with messages on the shelf could not be read, and begins anew",
		logs.Spaced(""), "error", err)
	s = shelf{Last: int64(now.Changed())} // more than any number of messages
	s.Consumers, err = c.shelvers(ctx)
	return s, err
}

// shelvers returns those registered consumers that have a shelf, and their queues
// that are one.
func (c *Shelving[Tx]) shelvers(ctx context.Context) (is []string, err error) {
	var all registry
	if err := c.load(ctx, consumersDoc, &all); err != nil && !errors.Is(err, once.ErrCorrupt) {
		return nil, err
	}
	for _, r := range all {
		if r.Keys == "" { // it cannot be read
			continue
		}
		for _, consumer := range []string{r.Keys, store.QueueOf(r.Keys)} {
			doc, err := c.Docs.LoadDoc(ctx, DocName{Name: linesDoc(consumer)})
			if err != nil {
				return nil, err
			}
			if doc.Version != "" && !slices.Contains(is, consumer) {
				is = append(is, consumer)
			}
		}
	}
	return is, nil
}

// shelfOf returns the consumers that a query looks at. damage is why there may be
// more.
func (c *Shelving[Tx]) shelfOf(ctx context.Context, consumer string) (consumers []string, damage, err error) {
	if consumer != "" {
		return []string{consumer}, nil, nil
	}
	var s shelf
	if err = c.load(ctx, shelfDoc, &s); errors.Is(err, once.ErrCorrupt) {
		consumers, damaged := c.shelvers(ctx)
		return consumers, err, damaged
	}
	return s.Consumers, nil, err
}

func (c *Shelving[Tx]) hasShelved(ctx context.Context, consumer string) (bool, error) {
	var lines []line
	err := c.load(ctx, linesDoc(consumer), &lines)
	return slices.ContainsFunc(lines, func(l line) bool { return l.open(true) }), err
}

const defaultPage, largestPage = 100, 1000

// Shelved returns messages by Seq.
func (c *Shelving[Tx]) Shelved(ctx context.Context, q store.ShelfQuery) (page []store.Shelved, err error) {
	now, err := c.now(ctx)
	if err != nil {
		return nil, err
	}
	consumers, damage, err := c.shelfOf(ctx, q.Consumer)
	if err != nil {
		return nil, err
	}
	if damage != nil && q.After == 0 && !q.Ready {
		page = append(page, store.Shelved{Unopened: damage})
	}
	type found struct {
		consumer string
		line
	}
	var all []found
	for _, consumer := range consumers {
		var lines []line
		err := c.load(ctx, linesDoc(consumer), &lines)
		if errors.Is(err, once.ErrCorrupt) && q.Consumer == "" { // the others are shown, and that there is one more
			if q.After == 0 && !q.Ready {
				page = append(page, store.Shelved{Consumer: consumer, Unopened: err})
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		_, queue := store.QueueOwner(consumer)
		for _, l := range selected(q, lines, now) {
			if q.NoQueued && queue && l.State == store.Waiting {
				continue
			}
			all = append(all, found{consumer, l})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.Seq, b.Seq) })
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	for _, at := range all {
		if len(page) == limit {
			break
		}
		m, ok, err := c.message(ctx, at.consumer, at.line, q, now)
		if err != nil {
			return nil, err
		}
		if ok {
			page = append(page, m)
		}
	}
	return page, nil
}

// dueIn returns when a message that is changed at an instant is due after a wait:
// at once, or not before its end.
func dueIn(wait time.Duration, changed Instant, now Now) Instant {
	if wait <= 0 {
		return now.Began()
	}
	return max(now.In(wait), changed+1)
}

// isDue reports whether the message is due. One that was due when it was written
// is due for every process, whatever it knows of the time.
func (l line) isDue(now Now) bool { return l.Due <= l.Updated || now.Passed(l.Due) }

// left returns the time until the message is due, or since then if it is not
// above 0.
func (h head) left(now Now) time.Duration {
	if h.isDue(now) {
		return min(now.AtMostUntil(h.Due), 0)
	}
	left := max(now.AtLeastUntil(h.Due), time.Microsecond)
	if h.Wait > 0 {
		left = min(left, h.Wait)
	}
	return left
}

// selected returns the lines that a query selects.
func selected(q store.ShelfQuery, lines []line, now Now) (is []line) {
	held := make(map[string]bool) // ordering keys of the messages so far
	for _, l := range lines {
		ready := l.State == store.Waiting && l.isDue(now) && !held[l.Order]
		if l.Seq > q.After && (len(q.States) == 0 || slices.Contains(q.States, l.State)) &&
			(len(q.IDs) == 0 || slices.Contains(q.IDs, l.ID)) && (q.OrderingKey == "" || q.OrderingKey == l.Order) &&
			(q.Topic == "" || q.Topic == l.Topic) && (ready || !q.Ready) {
			is = append(is, l)
		}
		held[l.Order] = held[l.Order] || l.Order != "" && l.open(q.BehindParked)
	}
	return is
}

// headNow reads the head of a message, whose Version is 0 if the message is gone.
func (c *Shelving[Tx]) headNow(ctx context.Context, consumer string, seq int64) (h head, err error) {
	err = c.load(ctx, headDoc(consumer, seq), &h)
	return h, err
}

// message returns a message on the shelf that a query has selected by its line. ok
// is false if it is gone, or has changed since the line was read: whoever was told
// that it is ready, with the Version that it got when another process took it, would
// take it too.
func (c *Shelving[Tx]) message(ctx context.Context, consumer string, of line, q store.ShelfQuery, now Now) (m store.Shelved, ok bool, err error) {
	seq, bodiless := of.Seq, q.Bodiless
	h, damage := c.headNow(ctx, consumer, seq)
	switch {
	case damage != nil:
		if h, ok = rebuilt(of, 1, damage); !ok {
			return m, false, damage
		}
	case h.Damage != "":
		damage = fmt.Errorf("%w: shelved message %d of %q: when it was changed: %s", once.ErrCorrupt, seq, consumer, h.Damage)
	}
	if h.Version == 0 || h.line != of && (q.Ready || h.State != of.State) {
		return m, false, nil
	}
	m = store.Shelved{Seq: seq, Unopened: damage, Version: h.Version, Consumer: consumer, Key: h.Key, Origin: string(h.Origin), State: h.State,
		Attempts: h.Attempts, Reason: string(h.Reason), History: string(h.History), Created: h.Created.Time(), Updated: h.Updated.Time(),
		Message: broker.Message{ID: h.ID, Topic: h.Topic, OrderingKey: h.Order}}
	if m.State == store.Waiting {
		m.Due = h.left(now)
	}
	if m.Unopened != nil {
		return m, true, nil
	}
	var text []byte
	for _, name := range h.parts(consumer) {
		var piece []byte
		err := c.load(ctx, name, &piece)
		if errors.Is(err, once.ErrCorrupt) {
			m.Unopened = err
			return m, true, nil
		}
		if err != nil {
			return m, false, err
		}
		if text = append(text, piece...); bodiless && bytes.Contains(piece, []byte("\n")) {
			break // the body follows
		}
	}
	var is content
	begin, body, _ := bytes.Cut(text, []byte("\n"))
	if err := json.Unmarshal(begin, &is); err != nil {
		if now, failed := c.headNow(ctx, consumer, seq); failed != nil || now.Version == 0 { // it was deleted between the reads
			return m, false, failed
		}
		m.Unopened = fmt.Errorf("%w: the content of shelved message %d of %q: %w", once.ErrCorrupt, seq, consumer, err)
		return m, true, nil
	}
	m.Message.Time = is.Time
	if bodiless {
		return m, true, nil
	}
	m.Message.Body = body
	for _, pair := range is.Header {
		if m.Message.Header == nil {
			m.Message.Header = make(map[string]string)
		}
		m.Message.Header[string(pair[0])] = string(pair[1])
	}
	return m, true, nil
}

func checkShelved(m store.Shelved) error {
	if err := checkNames("Consumer", m.Consumer); err != nil {
		return err
	}
	err := checkNames("ID", m.Message.ID, "Key", m.Key, "OrderingKey", m.Message.OrderingKey, "Topic", m.Message.Topic)
	if err != nil {
		return fmt.Errorf("message %.40q: %w", m.Message.ID, err)
	}
	return checkState(m)
}

const longestText = 64 << 10

func checkState(m store.Shelved) error {
	if m.State < store.Waiting || m.State > store.Discarded {
		return fmt.Errorf("%w: a message on the shelf has no state %d", once.ErrInvalid, m.State)
	}
	for what, text := range map[string]string{"Reason": m.Reason, "History": m.History, "Origin": m.Origin} {
		if len(text) > longestText {
			return fmt.Errorf("%w: the %s has %d bytes, the limit is %d: shorten it", once.ErrInvalid, what, len(text), longestText)
		}
	}
	return nil
}
