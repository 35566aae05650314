package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/lease"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

const (
	shelfPoll      = time.Second      // longest interval between two reads of the shelf
	shelfTidyEvery = 10 * time.Minute // how often settled messages are deleted from it
	shelfTidyLimit = 1000             // and how many at a time
	shelfKept      = 90 * 24 * time.Hour
	unopenedPause  = time.Minute     // delay of a message whose secret is missing
	endTime        = 2 * time.Second // limits one try to write what has become of an attempt
)

// shelfWorker handles the messages on the shelf that are due, several
// concurrently.
type shelfWorker struct {
	*env
	processor processor
	running   sync.WaitGroup
	look      chan struct{} // has an element when a message was settled, so that others may be due
	place     int64         // the Seq of the last message that was looked at, from which the next look goes on
	told      time.Time     // when it was last looked for messages that wait for another process
	holder    string        // the name of this worker in the Reason of a message
	leases    lease.Queue
	stop      context.Context  // of the run
	probed    map[string]int64 // by topic: the Seq of the last message that was tried as a probe
	later     map[string]bool  // topics that are down, of which a message after that was found in this look

	mu         sync.Mutex
	busy       map[int64]bool // by Seq
	renewAgain time.Time      // renewing a lease did not work some time before
}

func newShelfWorker(e *env, p processor) *shelfWorker {
	return &shelfWorker{env: e, processor: p, holder: shelfHolder(), busy: make(map[int64]bool), look: make(chan struct{}, 1),
		stop: context.Background(), probed: make(map[string]int64), later: make(map[string]bool)}
}

// run works until ctx ends. Handlers get the context work.
func (w *shelfWorker) run(ctx, work context.Context) {
	if w.shelf == nil {
		return
	}
	w.stop = ctx
	defer w.running.Wait()
	defer w.outages.whenUp(w.lookAgain)()
	tidied := time.Time{}
	for ctx.Err() == nil {
		if time.Since(tidied) > shelfTidyEvery {
			tidied = time.Now()
			if _, err := w.shelf.ForgetShelved(ctx, shelfKept, shelfTidyLimit); err != nil && ctx.Err() == nil {
				w.logger.WarnContext(ctx, "inbox: settled messages could not be deleted from the shelf", logs.Spaced(""), "error", err)
			}
		}
		pause := w.startDue(ctx, work)
		w.tellWaits(ctx)
		w.wait(ctx, pause)
	}
}

// shelfPages is how many pages of the shelf are read in one look if few of their
// messages can be started, and shelfPage is how many messages a page has at most.
const (
	shelfPages = 10
	shelfPage  = 1000
)

// startDue starts to handle the messages that are due. It returns how long to wait
// before the next look: longer if all of them wait for topics that are down. A look
// goes on where the last one ended, and from the end of the shelf to its beginning,
// so that what cannot be started keeps nothing after it from being started.
func (w *shelfWorker) startDue(ctx, work context.Context) time.Duration {
	q := store.ShelfQuery{Consumer: w.keys, Ready: true, BehindParked: w.OnParked == HoldOrder, Limit: min(4*w.Concurrency, shelfPage)}
	from, wrapped := w.place, w.place == 0
	found, started := 0, 0
	for range shelfPages {
		q.After = w.place
		due, err := w.shelf.Shelved(ctx, q)
		if err != nil {
			if ctx.Err() == nil {
				w.logger.WarnContext(ctx, "inbox: the shelf could not be read", logs.Spaced(""), "error", err)
			}
			return shelfPoll
		}
		n, full := w.start(work, due)
		if full {
			return shelfPoll
		}
		found, started = found+len(due), started+n
		end := len(due) < q.Limit
		seenAll := wrapped && (end || from > 0 && w.place >= from)
		if end {
			w.place, wrapped = 0, true
			w.wrapProbes()
		}
		switch {
		case seenAll && found > 0 && started == 0:
			return max(w.outages.nextProbe(), shelfPoll)
		case seenAll:
			return shelfPoll
		}
	}
	return shelfPoll
}

// start starts to handle messages, except those that are being handled or whose
// topics are down. It returns how many it started, and whether it has stopped
// because Concurrency was reached.
func (w *shelfWorker) start(work context.Context, due []store.Shelved) (started int, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range due {
		if len(w.busy) >= w.Concurrency {
			return started, true
		}
		w.place = m.Seq
		if w.busy[m.Seq] {
			continue
		}
		how := admitted
		if m.Unopened == nil {
			if how = w.admit(m); how == held {
				continue
			}
		}
		started++
		w.busy[m.Seq] = true
		w.running.Add(1)
		go w.handle(work, m, how == asProbe)
	}
	return started, false
}

// admit says whether a message may be tried now. The probes of a topic that is down
// go through its messages in turn: some may always fail.
func (w *shelfWorker) admit(m store.Shelved) admission {
	topic := m.Message.Topic
	if w.outages.isDown(topic) {
		if m.Seq <= w.probed[topic] {
			return held
		}
		w.later[topic] = true
	}
	how, _ := w.outages.admit(topic)
	if how == asProbe {
		w.probed[topic] = m.Seq
	}
	return how
}

// wrapProbes has the next probe of a topic be its first message if there is none
// after the last one.
func (w *shelfWorker) wrapProbes() {
	for topic := range w.probed {
		if !w.later[topic] {
			delete(w.probed, topic)
		}
	}
	clear(w.later)
}

func (w *shelfWorker) handle(ctx context.Context, m store.Shelved, probe bool) {
	defer w.running.Done()
	settled := false
	defer func() { w.done(m.Seq, settled) }() // also if the handler ends the goroutine
	settled = w.attempt(ctx, m, probe)
}

func (w *shelfWorker) done(seq int64, settled bool) {
	w.mu.Lock()
	delete(w.busy, seq)
	w.mu.Unlock()
	if settled {
		w.lookAgain()
	}
}

// lookAgain has the shelf read at once.
func (w *shelfWorker) lookAgain() {
	select {
	case w.look <- struct{}{}:
	default:
	}
}

// wait waits until messages may be due.
func (w *shelfWorker) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-w.look:
	}
}

// attempt makes an attempt at a message, and reports whether it could. The
// attempt is counted before it starts. Whoever counts it has the message, and
// renews its lease.
func (w *shelfWorker) attempt(ctx context.Context, m store.Shelved, probe bool) bool {
	var it *item
	defer func() {
		if probe && (it == nil || it.probe) { // it has shown nothing
			w.outages.unused(m.Message.Topic, true)
		}
	}()
	if m.Unopened != nil {
		w.holdUnopened(ctx, m)
		return false
	}
	_, reason, unended := cutNeverEnded(m.Reason)
	if m.Attempts >= w.Retry.Attempts && !unended && !w.outages.blames(w.itemOf(m), w.Retry.Attempts) {
		m.Attempts = 0
	}
	hold := w.newHold(m.Reason)
	m.Attempts, m.Due = m.Attempts+1, hold.length
	hold.alone = unended && m.Attempts >= w.Retry.Attempts
	unlock, err := w.lock.acquire(ctx, hold.alone)
	if err != nil {
		return false
	}
	defer unlock()
	m.Reason, hold.began = neverEndedReason(w.holder, reason), time.Now()
	hold.written = hold.began
	if !w.begin(ctx, hold, &m) {
		return false
	}
	hold.row, m.Reason = m, reason
	it = w.itemOf(m)
	it.probe, it.hold = probe, hold
	ctx, observed := w.observe(ctx, []*item{it}, true)
	defer observed.end() // also if the handler ends the goroutine
	if m.Attempts > w.Retry.Attempts {
		observed.set(0, w.usedUp(ctx, it, m, unended))
		return true
	}
	observed.set(0, w.try(ctx, it, m))
	return true
}

// begin counts an attempt. If it cannot, or does not hear that it could, none begins.
func (w *shelfWorker) begin(ctx context.Context, hold *shelfHold, m *store.Shelved) bool {
	err := w.write(ctx, m, min(storeTime, max(hold.length-findTime, findTime))) // which leaves time to take it back
	if err != nil && !errors.Is(err, once.ErrLeaseLost) {
		w.takeBack(ctx, hold, *m)
	}
	return err == nil
}

// takeBack writes a row as it was before an attempt that did not begin, so that the
// attempt does not count, whether its row is written, will be, or is not. After the
// lease, others have the message.
func (w *shelfWorker) takeBack(ctx context.Context, hold *shelfHold, m store.Shelved) {
	back := m
	back.Attempts, back.Due, back.Reason = m.Attempts-1, storePause, hold.was
	for time.Since(hold.written) < hold.length {
		if w.writeBack(ctx, m, &back) || backoff.Sleep(ctx, storePause) != nil {
			return
		}
	}
}

// writeBack makes a row what it was before a change of which it is not known whether
// it was written. It reports false if that is to be tried again.
func (w *shelfWorker) writeBack(ctx context.Context, changed store.Shelved, back *store.Shelved) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTime)
	defer cancel()
	found, err := w.find(ctx, changed)
	if err != nil {
		return errors.Is(err, once.ErrLeaseLost)
	}
	if found.Version != changed.Version-1 && (found.Version != changed.Version || found.Reason != changed.Reason) {
		return true // others have changed it
	}
	back.Version = found.Version
	err = w.write(ctx, back, findTime)
	return err == nil || errors.Is(err, once.ErrLeaseLost)
}

// find returns a row in the state in which it is expected, without its body.
func (w *shelfWorker) find(ctx context.Context, row store.Shelved) (store.Shelved, error) {
	q := store.ShelfQuery{Consumer: row.Consumer, IDs: []string{row.Message.ID}, States: []store.ShelfState{row.State}, Limit: 10, Bodiless: true}
	found, err := w.shelf.Shelved(ctx, q)
	if err != nil {
		return row, err
	}
	for _, m := range found {
		if m.Seq == row.Seq {
			return m, nil
		}
	}
	return row, errChangedByOthers
}

// itemOf returns the item of a message on the shelf.
func (w *shelfWorker) itemOf(m store.Shelved) *item {
	message := original(m.Message)
	d := broker.Delivery{Message: &message, Redelivered: true, Origin: m.Origin}
	it := w.newItem(d, w.namesOf([]broker.Delivery{d})[0])
	it.counting, it.shelvedAt = countAfter, m.Created
	if it.keyErr != nil && !w.keyed { // its key was its place in the log; on the shelf it is its ID there
		it.key.ID, it.keyErr = m.Message.ID, nil
	}
	return it
}

// holdUnopened delays a message whose secret is missing, and parks a message
// that was changed, or that is not sealed although it has to be. The key is left
// alone, because the true message may still come.
func (w *shelfWorker) holdUnopened(ctx context.Context, m store.Shelved) {
	if store.IsSealKeyMissing(m.Unopened) {
		m.Due = unopenedPause
		w.logger.WarnContext(ctx, "inbox: a message on the shelf cannot be opened, and waits for its secret", logs.Spaced(""), "message", m.Message.ID,
			"origin", m.Origin, "error", m.Unopened)
		w.change(ctx, &m)
		return
	}
	m.State, m.Due, m.Reason = store.Parked, 0, name.Reason(m.Unopened.Error())
	if w.change(ctx, &m) {
		w.Stats.Parked.Add(1)
		w.logParked(ctx, m, m.Message.ID)
	}
}

// usedUp parks a message whose attempts are used up, without an attempt. unended
// is whether the last one never ended.
func (w *shelfWorker) usedUp(ctx context.Context, it *item, m store.Shelved, unended bool) result {
	m.Attempts--
	if it.keyErr == nil && w.keyed {
		if rec, err := w.store.Get(ctx, it.key); err == nil && (rec.Status == once.Done || rec.Status == once.Expired) && w.sameInput(it, rec) {
			m.State = store.Handled // and the end of that attempt could not be written
			w.end(ctx, it.hold, &m)
			w.Stats.count(result{kind: duplicate})
			return result{kind: duplicate}
		}
	}
	text := "no attempt is left"
	if unended {
		text = "begun, and never ended: it may end its process"
	}
	if m.Reason != "" {
		text += ". Before that: " + m.Reason
	}
	return w.parkShelved(ctx, it, m, errors.New(text))
}

// try makes an attempt that is counted.
func (w *shelfWorker) try(ctx context.Context, it *item, m store.Shelved) result {
	err := it.keyErr
	if err == nil {
		_, err = w.freeParked(ctx, it, &m)
	}
	if err == nil {
		done := m
		done.State = store.Handled
		var r shelvedResult
		r, err = w.handleHeld(ctx, it, done)
		m.Version = it.hold.end(ctx)
		if done.Version = m.Version; err == nil {
			if r.write == shelfUnwritten {
				w.end(ctx, it.hold, &done)
			}
			w.Stats.count(result{kind: r.kind})
			if it.ran && r.kind != duplicate {
				it.probe = false
				w.outages.passed(ctx, it)
			}
			return result{kind: r.kind}
		}
		if freed := false; errors.Is(err, once.ErrParked) { // by the process that parked the message, which was late
			if freed, _ = w.freeParked(ctx, it, &m); freed {
				err = errFreed
			}
		}
	}
	after, retry := once.MayRetry(err)
	retry = retry && it.keyErr == nil
	pause, waits := w.waitForAnswer(ctx, it, err)
	switch {
	case ctx.Err() == nil && waits:
		if it.hold.alone { // others had to wait for the question
			pause = max(pause, 10*time.Since(it.hold.began))
		}
		w.uncount(ctx, it, m, pause, name.Reason(whyOf(err)))
	case ctx.Err() != nil, retry && w.isOfStore(err): // the message did not cause it
		w.uncount(ctx, it, m, storePause, m.Reason)
	case !retry:
		w.Stats.Failed.Add(1)
		return w.parkShelved(ctx, it, m, err)
	default:
		w.Stats.Failed.Add(1)
		if counted, instead := w.unblamedShelved(ctx, it, m, err); instead != nil {
			m.Attempts, m.Due, m.Reason = counted, max(after, instead.after), name.Reason(whyOf(err))
			w.end(ctx, it.hold, &m)
			return *instead
		}
		if m.Attempts >= w.Retry.Attempts {
			return w.parkShelved(ctx, it, m, err)
		}
		m.Due, m.Reason = max(after, w.Retry.wait(int64(m.Attempts))), name.Reason(whyOf(err))
		w.end(ctx, it.hold, &m)
	}
	return result{kind: again, reason: err.Error()}
}

// isOfStore reports whether an error says that the store failed, and nothing of the
// message.
func (w *shelfWorker) isOfStore(err error) bool {
	return handlerErrorOf(err) == nil && !isUnanswered(err) && (w.mode != outside || !errors.Is(err, once.ErrOutcomeUnknown))
}

// uncount takes back an attempt that does not count.
func (w *shelfWorker) uncount(ctx context.Context, it *item, m store.Shelved, due time.Duration, reason string) {
	m.Attempts, m.Due, m.Reason = m.Attempts-1, due, reason
	if _, _, unended := cutNeverEnded(it.hold.was); unended && !it.ran { // nor does it show that the one before has ended
		m.Reason = it.hold.was
	}
	w.end(ctx, it.hold, &m)
}

// end writes what has become of an attempt, and reports whether the row has it. It
// tries that for as long as nobody else has the message, until the run ends:
// otherwise the attempt counts, as one that never ended.
func (w *shelfWorker) end(ctx context.Context, hold *shelfHold, m *store.Shelved) bool {
	version, until := m.Version, hold.lapses()
	unheard, stopping := false, false // a write had no reply; the run ends
	for {
		m.Version = version
		err := w.write(ctx, m, endTime)
		if err == nil {
			return true
		}
		lost := errors.Is(err, once.ErrLeaseLost)
		if lost && unheard {
			written, err := w.isWritten(ctx, *m)
			if written {
				return true
			}
			lost = err == nil
		}
		if lost && !hold.isUnsure() || stopping || time.Until(until) < storePause {
			return false
		}
		unheard = unheard || !lost
		stopping = backoff.Sleep(w.stop, storePause) != nil
		if hold.isUnsure() {
			version = hold.end(ctx)
		}
	}
}

// isWritten reports whether a row is on the shelf as it is here.
func (w *shelfWorker) isWritten(ctx context.Context, row store.Shelved) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTime)
	defer cancel()
	found, err := w.find(ctx, row)
	if errors.Is(err, once.ErrLeaseLost) {
		return false, nil
	}
	return err == nil && found.Version == row.Version && found.Reason == row.Reason, err
}

// handleHeld handles a message whose lease is renewed meanwhile.
func (w *shelfWorker) handleHeld(ctx context.Context, it *item, done store.Shelved) (shelvedResult, error) {
	it.hold.start(ctx)
	defer it.hold.end(ctx) // also if the handler ends the goroutine
	return w.processor.handleShelved(ctx, it, done)
}

// unblamedShelved returns the result of a message that is not to blame for its
// failed attempt, because its topic is down, or nil. counted is how many of its
// attempts count.
func (w *shelfWorker) unblamedShelved(ctx context.Context, it *item, m store.Shelved, err error) (counted int, instead *result) {
	if it.keyErr != nil {
		return 0, nil
	}
	counted, instead = m.Attempts-1, w.unblamed(ctx, it, err)
	if instead == nil && m.Attempts >= w.Retry.Attempts {
		if _, _, unended := cutNeverEnded(it.hold.was); !unended { // else it may end processes: its next attempt is its last one again
			counted = 0
		}
		instead = w.notParked(ctx, it, err)
	}
	if instead == nil {
		return 0, nil
	}
	it.probe = false
	return counted, &result{kind: again, after: max(instead.after, shelfAfter), reason: err.Error()}
}

func (w *shelfWorker) parkShelved(ctx context.Context, it *item, m store.Shelved, err error) result {
	m.State, m.Reason = store.Parked, fmt.Sprintf("attempt %d: %s", m.Attempts, whyOf(err))
	if w.mode == outside && (errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked)) { // a transaction leaves nothing
		m.Reason = unknownOutcome + m.Reason
	}
	m.Reason = name.Reason(m.Reason)
	if !w.end(ctx, it.hold, &m) {
		return result{kind: again, reason: m.Reason}
	}
	w.Stats.Parked.Add(1)
	w.logParked(ctx, m, m.Message.ID)
	if it.keyErr == nil && w.keyed {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
		defer cancel()
		if err := w.parkKey(ctx, it, m); err != nil {
			w.logger.WarnContext(ctx, "inbox: the key of a parked message could not be parked", "message", m.Message.ID, "error", err)
		}
	}
	return result{kind: parked, reason: m.Reason}
}

// change writes a message to the shelf, and reports whether it was still as it
// was read. The Reason must be short, or as it was read: a sealed reason that
// could not be opened is longer, and cutting it would destroy it.
func (w *shelfWorker) change(ctx context.Context, m *store.Shelved) bool {
	return w.write(ctx, m, storeTime) == nil
}

func (w *shelfWorker) write(ctx context.Context, m *store.Shelved, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	err := w.shelf.Change(ctx, *m)
	m.Version++
	if err != nil && !errors.Is(err, once.ErrLeaseLost) {
		w.logger.WarnContext(ctx, "inbox: a message on the shelf could not be changed", logs.Spaced(""), "message", m.Message.ID, "error", err)
	}
	return err
}
