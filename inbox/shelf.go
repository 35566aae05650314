package inbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

const (
	storeTime  = 10 * time.Second // limits writes that must happen even after the run ends
	shelfAfter = 5 * time.Second  // a longer delay is spent on the shelf, where the message takes no place in the window
	storePause = time.Second      // delay after an error of the store
	noteLease  = 10 * time.Second // of a claim that is settled at once
)

// unknownOutcome begins the reason of a message whose effect may have happened.
const unknownOutcome = store.UnknownOutcome

// resolve carries out a result that asks for something: a retry, a wait on the
// shelf, or parking.
func (e *env) resolve(ctx context.Context, it *item, r result) result {
	if !r.needsShelf() {
		return r
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	switch r.kind {
	case failing:
		return e.retryLater(ctx, it, r)
	case blocked:
		return e.shelve(ctx, it, 0, errBlocked.Error())
	default:
		return e.park(ctx, it, r.reason)
	}
}

// retryLater decides where a message that failed waits for its next attempt.
func (e *env) retryLater(ctx context.Context, it *item, r result) result {
	it.tries++
	if r.after < shelfAfter || e.shelf == nil {
		return result{kind: again, after: r.after, reason: r.reason}
	}
	return e.shelve(ctx, it, r.after, r.reason)
}

// shelve puts a message on the shelf, to be tried after a delay.
func (e *env) shelve(ctx context.Context, it *item, due time.Duration, reason string) result {
	err := e.nameOnShelf(ctx, it)
	if err == nil {
		err = e.shelf.Shelve(ctx, []store.Shelved{e.shelvedFrom(it, store.Waiting, due, reason)})
	}
	if err != nil {
		return e.troubled(ctx, it, err)
	}
	return result{kind: shelved, reason: reason}
}

// mustWait reports whether an item can only wait on the shelf: because an
// earlier message of its ordering key is there, or because it is there itself
// and this is a copy. An item that waits has no attempt.
func (e *env) mustWait(ctx context.Context, it *item) (bool, error) {
	if e.shelf == nil {
		return false, nil
	}
	if blocked, err := e.isBlocked(ctx, it); blocked || err != nil {
		return blocked, err
	}
	if it.order != "" && e.OnParked == HoldOrder { // if it were on the shelf, it would be blocked
		return false, nil
	}
	err := e.nameOnShelf(ctx, it)
	return it.onShelf != notOnShelf, err
}

// isBlocked reports whether an item has to wait for a message of its ordering
// key that is on the shelf.
func (e *env) isBlocked(ctx context.Context, it *item) (bool, error) {
	if e.shelf == nil || it.order == "" {
		return false, nil
	}
	q := store.ShelfQuery{Consumer: e.keys, OrderingKey: it.order, States: []store.ShelfState{store.Waiting}, Limit: 1, Bodiless: true}
	if e.OnParked == HoldOrder {
		q.States = append(q.States, store.Parked)
	}
	found, err := e.shelf.Shelved(ctx, q)
	return len(found) > 0, err
}

// park puts a message on the shelf for a person, and parks its key, so that
// copies of it are recognised. The message is on the shelf before its key is
// parked, so that a crash in between leaves it on the shelf and at the broker,
// and loses nothing.
func (e *env) park(ctx context.Context, it *item, reason string) result {
	if err := e.nameOnShelf(ctx, it); err != nil {
		return e.troubled(ctx, it, err)
	}
	if it.onShelf == waitingOnShelf { // the message there has attempts left
		return result{kind: shelved, reason: reason}
	}
	m := e.shelvedFrom(it, store.Parked, 0, reason)
	if e.shelf != nil {
		if err := e.shelf.Shelve(ctx, []store.Shelved{m}); err != nil {
			return e.troubled(ctx, it, err)
		}
	}
	if it.keyErr == nil && e.keyed {
		if err := e.parkKey(ctx, it, m); err != nil {
			return e.troubled(ctx, it, err)
		}
	}
	e.logParked(ctx, m, it.Message.ID)
	return result{kind: parked, reason: m.Reason}
}

// note changes the reason of a key that is no work, and is kept for the sake of
// that. text is called with the record as it is and the time by the clock of the
// store; if it returns nothing, the key is forgotten. If another process changes
// it meanwhile, nothing is changed.
func (e *env) note(ctx context.Context, key once.Key, keep time.Duration, text func(was once.Record, now time.Time) string) error {
	was, err := e.store.Get(ctx, key)
	if err != nil {
		return err
	}
	claim := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: name.Token()}, Lease: noteLease}
	if was.Status == once.Unknown { // a process ended while it wrote
		claim.Attempt = was.Attempt
	}
	settlement := func(rec once.Record) once.Settlement {
		fence := once.Fence{Key: key, Owner: claim.Owner, Attempt: rec.Attempt}
		set := once.Settlement{Fence: fence, Status: once.Absent, KeepKey: keep, Reason: text(was, rec.Created.Add(rec.Age))}
		if set.Reason == "" {
			set.KeepKey = time.Microsecond
		}
		return set
	}
	if e.transact != nil { // a process that dies meanwhile leaves no claim
		recs, err := e.transact(ctx, []once.ClaimRequest{claim}, func(recs []once.Record) ([]once.Settlement, error) {
			return []once.Settlement{settlement(recs[0])}, nil
		})
		if err == nil && !isOurs(recs[0], claim.Owner) {
			return errNoted
		}
		return err
	}
	rec, err := e.store.Claim(ctx, claim)
	if err != nil || !isOurs(rec, claim.Owner) {
		return cmp.Or(err, errNoted)
	}
	return e.store.Settle(ctx, settlement(rec))
}

// endNote ends a note that a process has begun and not written, because it died.
func (e *env) endNote(ctx context.Context, rec once.Record) {
	if rec.Status != once.Unknown {
		return
	}
	fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
	set := once.Settlement{Fence: fence, Status: once.Absent, KeepKey: time.Microsecond}
	if err := e.store.Settle(ctx, set); err != nil && !errors.Is(err, once.ErrLeaseLost) {
		e.logger.WarnContext(ctx, "inbox: the counts of attempts could not be corrected", logs.Spaced(""), "messages", 1, "error", err)
	}
}

var errNoted = errors.New("inbox: another process is writing the same note")

// parkKey parks the key of a message that was parked as m, unless it is done or
// parked already.
func (e *env) parkKey(ctx context.Context, it *item, m store.Shelved) error {
	rec, err := e.store.Get(ctx, it.key)
	if err == nil && rec.Status == once.Absent {
		claim := e.claimRequest(it)
		claim.Owner = parkOwner(&m, rec.Attempt)
		rec, err = e.store.Claim(ctx, claim)
		if err == nil && isOurs(rec, claim.Owner) && !isParking(rec, &m) { // a copy was tried since the key was read
			fence := once.Fence{Key: it.key, Owner: rec.Owner, Attempt: rec.Attempt}
			if err := e.store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: e.Policy.KeepKey}); err != nil {
				return err
			}
			return e.parkKey(ctx, it, m)
		}
	}
	isOwn := isParking(rec, &m) // our claim, or that of a process that ended before it had parked the key
	if err != nil || rec.Status != once.Unknown && !(isOwn && rec.Status == once.Running) {
		return err
	}
	fence := once.Fence{Key: it.key, Owner: rec.Owner, Attempt: rec.Attempt}
	err = e.store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Parked,
		Reason: e.store.Options().Sealing.SealReason(it.key, m.Reason)})
	if errors.Is(err, once.ErrLeaseLost) { // another process has changed it meanwhile, or a person has decided
		return nil
	}
	return err
}

// parkOwner is the owner of the claim by which a key is parked with a message on
// the shelf, after so many attempts. Whoever meets it knows that nothing ran since
// the message was parked, even if the process that parked it has ended: then a
// decision about the message holds for its key.
func parkOwner(m *store.Shelved, attempts int64) [16]byte {
	return name.Digest("park", m.Consumer, m.Message.ID, strconv.FormatInt(attempts, 10))
}

// isParking reports whether the latest claim of a key is that of parkOwner.
func isParking(rec once.Record, m *store.Shelved) bool {
	open := rec.Status == once.Running || rec.Status == once.Unknown || rec.Status == once.Parked
	return open && rec.Owner == parkOwner(m, rec.Attempt-1)
}

// errFreed reports that the key of a message was parked late, and is free again.
var errFreed = errors.New("inbox: the key was parked after a person had its message tried again, and is free now")

// freeParked frees a key that was parked with a message, or was to be, if the
// message waits on the shelf: a person had it tried again, and the process that
// parked the key, or that of the person, ended before the key followed. freed
// reports whether it did.
func (e *env) freeParked(ctx context.Context, it *item, m *store.Shelved) (freed bool, err error) {
	if m.History == "" || it.keyErr != nil || !e.keyed { // nobody has decided
		return false, nil
	}
	rec, err := e.store.Get(ctx, it.key)
	if err != nil || !isParking(rec, m) {
		return false, err
	}
	rec.Key = it.key
	err = endParking(ctx, e.store, rec, once.Settlement{Status: once.Absent, Reason: "its message waits on the shelf for another attempt"})
	if errors.Is(err, once.ErrLeaseLost) {
		return false, nil
	}
	return err == nil, err
}

// endParking settles a key of which isParking holds, in place of the process that
// was to park it, or has.
func endParking(ctx context.Context, s once.Store, rec once.Record, set once.Settlement) error {
	set.Fence = once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
	set.Reason, set.KeepOutcome, set.KeepKey = name.Reason(set.Reason), decidedOutcome, decidedKey
	if set.Status == once.Done {
		set.Outcome, _ = s.Options().Pack(rec.Key, rec.Fingerprint, set.Outcome)
	}
	return s.Settle(ctx, set)
}

// logParked logs that a message is parked. id is its own ID, not that on the
// shelf.
func (e *env) logParked(ctx context.Context, m store.Shelved, id string) {
	e.logger.ErrorContext(ctx, "inbox: parked", "message", id, "origin", m.Origin, "cause", m.Message.Header[store.KeyHeader],
		"reason", m.Reason)
}

// troubled is the result of an item after an error of the store.
func (e *env) troubled(ctx context.Context, it *item, err error) result {
	it.excuse()
	e.logger.WarnContext(ctx, "inbox: the store failed, and the message waits", logs.Spaced(""), "message", it.Message.ID,
		"origin", it.Origin, "error", err)
	return result{kind: again, after: storePause, reason: err.Error()}
}

// shelvedFrom returns an item as it is put on the shelf. There it has an ID that
// no other message on the shelf has, and the ordering key of OrderBy.
func (e *env) shelvedFrom(it *item, state store.ShelfState, due time.Duration, reason string) store.Shelved {
	m := *it.Message
	m.Header = maps.Clone(m.Header)
	replace := func(header string, value *string, by string) {
		if _, foreign := m.Header[header]; *value == by && !foreign { // one of the producer's would be taken for ours
			return
		}
		if m.Header == nil {
			m.Header = make(map[string]string)
		}
		m.Header[header], *value = *value, by
	}
	replace(broker.OriginalOrderingKeyHeader, &m.OrderingKey, it.order)
	replace(broker.OriginalIDHeader, &m.ID, cmp.Or(it.shelfID, m.ID))
	if name.Check("", m.Topic) != nil || m.Topic == "" {
		m.Topic = "digest-" + name.Format(name.Digest(m.Topic))
	}
	id := it.key.ID
	if it.keyErr != nil {
		id = ""
	}
	return store.Shelved{Consumer: e.keys, Key: id, Message: m, Origin: shortened(it.Origin), State: state, Due: due,
		Attempts: it.made(), Reason: name.Reason(reason)}
}

func shortened(origin string) string {
	origin = strings.ToValidUTF8(strings.ReplaceAll(origin, "\x00", ""), "")
	return strings.ToValidUTF8(origin[:min(len(origin), name.Limit)], "")
}

// nameOnShelf finds out whether items are on the shelf, and gives an item
// another ID if the shelf has, or had, a different message with its ID. Do not
// call it in a transaction: it would need a second connection.
func (e *env) nameOnShelf(ctx context.Context, items ...*item) error {
	if e.shelf == nil {
		return nil
	}
	q := store.ShelfQuery{Consumer: e.keys, Limit: 1000}
	for _, it := range items {
		if it.shelfID == "" {
			q.IDs = append(q.IDs, it.Message.ID, it.digestID())
		} else {
			q.IDs = append(q.IDs, it.shelfID)
		}
	}
	if len(q.IDs) == 0 {
		return nil
	}
	found, err := e.shelf.Shelved(ctx, q)
	if err != nil {
		return err
	}
	byID := make(map[string]store.Shelved)
	for _, m := range found {
		byID[m.Message.ID] = m
	}
	for _, it := range items {
		if it.shelfID == "" {
			it.shelfID = it.freeID(byID)
		}
		m, found := byID[cmp.Or(it.shelfID, it.Message.ID)]
		switch {
		case !found || !it.isOpen(m):
			it.onShelf = notOnShelf
		case m.State == store.Waiting:
			it.onShelf = waitingOnShelf
		default:
			it.onShelf = parkedOnShelf
		}
	}
	return nil
}

// digestID is the ID on the shelf of an item whose own ID belongs to another
// message.
func (it *item) digestID() string {
	sum := name.Format(digest(it.Message))
	return it.Message.ID[:min(len(it.Message.ID), name.Limit-len(sum)-1)] + "#" + sum
}

// freeID returns an ID that no other message on the shelf has, or "" for the
// message's own.
func (it *item) freeID(byID map[string]store.Shelved) string {
	own, taken := byID[it.Message.ID]
	if !taken || it.isOpen(own) {
		return ""
	}
	if other, taken := byID[it.digestID()]; !taken || it.isOpen(other) {
		return it.digestID()
	}
	return "again-" + name.Format(name.Token())
}

// isOpen reports whether a message on the shelf is this one, and is still
// waiting or parked.
func (it *item) isOpen(m store.Shelved) bool {
	was := original(m.Message)
	return (m.State == store.Waiting || m.State == store.Parked) && digest(&was) == digest(it.Message)
}
