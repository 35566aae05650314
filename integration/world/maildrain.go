package world

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// leasesLapse is when the leases of relays that were killed, or that a late call has
// taken, have lapsed.
const leasesLapse = 15 * time.Second

// drain waits until everything is done. Meanwhile a person looks at what is set
// aside, discards poison, and has the rest tried again.
func (m *mail) drain() {
	began, bound := time.Now(), m.drainTime()
	quiet, wasLate := began, true // since when no call has come late: it may lease lanes for one that is dead
	for {
		isLate := m.LateCalls() > 0
		if isLate || wasLate {
			quiet = time.Now()
		}
		wasLate = isLate
		m.judgeParked()
		m.judgeStuck()
		left := m.ledger.waiting()
		open := append(m.openKeys(), m.openRetirements()...)
		m.judgeSick(left, time.Since(began))
		if len(left) == 0 && len(open) == 0 && m.unsettled() == 0 && m.discards.areDone() && time.Since(quiet) > leasesLapse {
			m.Tell(sim.Line{What: "DRAINED", Note: fmt.Sprint("after ", time.Since(began).Round(time.Second))})
			return
		}
		if time.Since(began) > bound {
			m.judgeUndrained(left, open, bound)
			return
		}
		time.Sleep(5*time.Second + 7*time.Nanosecond)
	}
}

// lifeAndAnswer is how long it takes from one death by a message to the next: until
// its process is started again, and Lookup may be asked.
const lifeAndAnswer = 90 * time.Second

// refusalsTake is how long a relay may take to try a message as often as the broker
// refuses it, if most of it is still to come: its pauses grow to five minutes.
const refusalsTake = 10 * time.Minute

// drainTime is the bound within which everything is done. When nothing else is left
// to do, nothing shows that poison is to blame, and each waits for an outage of its
// own.
func (m *mail) drainTime() time.Duration {
	bound := m.MailPlan.Drain
	for _, at := range m.ledger.order {
		if m.failsAt(ledgerName, at.id) == forEver {
			bound += m.Outage + 5*time.Minute
		}
		if _, refused := m.Trait("refusals of "+at.id, m.Flaky); refused {
			bound += refusalsTake
		}
		if m.isDeadly(at.id) {
			bound += time.Duration(m.mostAttempts()) * lifeAndAnswer
		}
	}
	return bound
}

// judgeUndrained says where the messages are that are not done.
func (m *mail) judgeUndrained(left, open []string, bound time.Duration) {
	for _, at := range left {
		consumer, id, found := strings.Cut(at, "/")
		if !found {
			consumer, id = "", at
		}
		if where := m.find(id, consumer); where != "" {
			m.Broke(Drained, at, "is not done %v after the last fault: %s", bound, where)
		} else {
			m.Broke(Vanished, at, "is nowhere, and was not handled")
		}
	}
	for _, k := range open {
		m.Broke(Drained, k, "%v after the last fault", bound)
	}
	if n := m.unsettled(); n > 0 && len(left) == 0 {
		m.Broke(Drained, "broker", "has %d messages that were handled and not acknowledged", n)
	}
}

// find says where a message is, or returns nothing.
func (m *mail) find(id, consumer string) string {
	if !m.ledger.isPut(id) {
		return "it was not put"
	}
	if where := m.whereIs(id); consumer == "" && where != notInOutbox {
		return "in the outbox, " + where
	}
	for _, s := range m.shelf(store.Waiting, store.Parked) {
		if s.Message.ID == id && strings.HasPrefix(s.Consumer, consumer) {
			return fmt.Sprintf("on the shelf of %s, %v, due in %v: %s", s.Consumer, s.State, s.Due.Round(time.Second), s.Reason)
		}
	}
	if consumer != "" && m.unsettled() > 0 {
		return "with the broker"
	}
	return ""
}

// unsettled is the number of messages that the broker still has to deliver.
func (m *mail) unsettled() (n int64) {
	for _, topic := range m.Topics {
		for _, c := range m.ledger.readersOf(topic) {
			if l, ok := broker.LaggerOf(m.source(topic, c)); ok {
				lag, err := l.Lag(context.Background())
				if err != nil {
					return 1 // it is down
				}
				n += lag.Messages
			}
		}
	}
	return n
}

// openKeys returns the keys whose work has no outcome.
func (m *mail) openKeys() (all []string) {
	q := once.RecordQuery{Status: []once.Status{once.Running, once.Unknown, once.Parked}}
	page, err := m.store.List(context.Background(), q)
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range page.Records {
		if strings.Contains(r.Key.Operation, "@@") {
			continue // a note of a consumer, which is no work
		}
		all = append(all, fmt.Sprintf("%s is %s (%s)", sim.KeyText(r.Key), r.Status, r.Reason))
	}
	return all
}

func (m *mail) shelf(states ...store.ShelfState) []store.Shelved {
	ms, err := m.store.Shelved(context.Background(), store.ShelfQuery{States: states, Limit: 1000})
	if err != nil {
		m.Broke(Drained, "shelf", "cannot be read: %v", err)
	}
	return ms
}

// consumerOf is the consumer without the topic.
func consumerOf(s store.Shelved) string {
	consumer, _, _ := strings.Cut(s.Consumer, "-")
	return consumer
}

// originalOf is the ID of the message itself, of one whose copy came after a decision
// and before the key followed.
func originalOf(s store.Shelved) string {
	if of, copied := s.Message.Header[broker.OriginalIDHeader]; copied {
		return of
	}
	return s.Message.ID
}

// hasNotHappened reports whether a person who looks at the downstream knows that
// the effect for a message did not happen and no longer can.
func (m *mail) hasNotHappened(s store.Shelved) bool {
	return !m.ledger.hasEffect(s.Consumer+"/"+s.Key) && m.LateCalls() == 0
}

const person = "a person"

// judgeParked judges what consumers have parked, and decides about it.
func (m *mail) judgeParked() {
	admin := inbox.Admin{Store: m.store}
	for _, d := range m.discards.failed() {
		_, err := d.carryOut(context.Background(), admin)
		if _, again := once.MayRetry(err); err != nil && !again { // else a copy is being handled at this moment
			m.Broke(Drained, d.q.IDs[0], "a discard cannot be repeated: %v", err)
		}
		m.discards.end(d, err)
	}
	for _, s := range m.shelf(store.Parked) {
		consumer := consumerOf(s)
		q := store.ShelfQuery{Consumer: s.Consumer, IDs: []string{s.Message.ID}}
		s.Message.ID = originalOf(s)
		if !m.ledger.knows(s.Message.ID) {
			continue // a report of an outage
		}
		m.judgeBlame(s, consumer)
		by, err := inbox.Decision{By: person, Reason: "the faults are over", NotDone: m.hasNotHappened(s)}, error(nil)
		switch {
		case m.isTooOld(s) && m.ledger.wasHandled(s.Message.ID, consumer), m.failsAt(consumer, s.Message.ID) == forEver, m.ledger.hasEffect(s.Consumer + "/" + s.Key):
			m.ledger.discard(s.Message.ID, consumer)
			d := &discard{q: q, by: by}
			m.discards.begin(d)
			_, err = d.carryOut(context.Background(), admin)
			m.discards.end(d, err)
		default:
			m.ledger.triesAgain(s.Message.ID, consumer)
			_, err = admin.Replay(context.Background(), q, by)
		}
		if _, again := once.MayRetry(err); err != nil && !again {
			m.Broke(Drained, s.Message.ID, "a person cannot decide: %v", err)
		}
	}
}

// judgeBlame judges whether a message that is parked failed as often as it may.
// The lost reply to a call about it may count as well, because its consumer cannot
// know what has happened.
func (m *mail) judgeBlame(s store.Shelved, consumer string) {
	if !m.ledger.looksFirst(s) || m.isTooOld(s) {
		return
	}
	if m.Blind && consumer == mailerName && strings.HasPrefix(s.Reason, store.UnknownOutcome) {
		return // one attempt is enough, and effects tell whether it was repeated
	}
	m.judgeAttempts(s, consumer)
	if m.ledger.lacksAnEnd(s, consumer) {
		return
	}
	failed, lost := m.ledger.failures(s.Message.ID, consumer, s.Updated, m.Outage), m.ledger.lost(m.ledger.letters[s.Message.ID], consumer)
	if failed+lost < m.Attempts {
		m.Broke(Blame, s.Message.ID, "parked by %s, and failed %d of %d times by itself, with %d lost replies: %s",
			consumer, failed, m.Attempts, lost, s.Reason)
	} else if m.Counting.Exact && m.isQuiet(s.Message.ID, consumer) && !m.ledger.mayPark(s.Message.ID, consumer) {
		m.Broke(Blame, s.Message.ID, "parked by %s, and what counts are no %d failures while others got through: %s", consumer, m.Attempts, s.Reason)
	}
}

// judgeStuck judges what relays have set aside, and has it published.
func (m *mail) judgeStuck() {
	ms, err := m.store.Outgoing(context.Background(), store.OutgoingQuery{State: store.Stuck, Limit: 1000})
	if err != nil {
		m.Broke(Drained, "outbox", "cannot be read: %v", err)
	}
	for _, s := range ms {
		if refused := m.ledger.refusals(s.Message.ID); refused < m.Attempts && m.Operators == 0 && !m.ledger.wasInvalid(s.Message.ID) {
			m.Broke(Blame, s.Message.ID, "stuck after %d refusals of %d: %s", refused, m.Attempts, s.Reason)
		}
		ended := m.ledger.releases(s.Message.ID)
		q := store.OutgoingQuery{IDs: []string{s.Message.ID}}
		_, err := outbox.Admin{Store: m.store}.Replay(context.Background(), q, outbox.Decision{By: person, Reason: "the faults are over"})
		ended(err)
		if err != nil {
			m.Broke(Drained, s.Message.ID, "a person cannot decide: %v", err)
		}
	}
}

// judgeRest judges what is left when all processes have ended.
func (m *mail) judgeRest() {
	leases, err := m.store.LeaseLanes(context.Background(), [16]byte{1}, time.Second, nil)
	if err != nil {
		m.Broke(NothingLeft, "outbox", "cannot be read: %v", err)
	}
	for lane, l := range leases.Lanes {
		if l.Relay != [16]byte{} && l.Left > 0 {
			m.Broke(NothingLeft, fmt.Sprint("lane ", lane), "is leased for %v more by %s, and all relays have ended", l.Left,
				m.store.LaneHeldBy(lane).Who)
		}
	}
	for _, k := range m.openKeys() {
		if key, _, _ := strings.Cut(k, " is "); !m.WasCutOff(key) { // who leaves has a second to give a claim back
			m.Broke(NothingLeft, k, "and all processes have ended")
		}
	}
	time.Sleep(time.Minute) // goroutines that wait for their deadlines
	if others := bubbleMates(sim.Stacks()); len(others) > 0 {
		m.Broke(NothingLeft, "goroutines", "%d are left:\n%s", len(others), strings.Join(others, "\n\n"))
	}
}

// bubbleMates returns the other goroutines of the bubble of the first one.
func bubbleMates(stacks string) (others []string) {
	first, rest, _ := strings.Cut(stacks, "\n\n")
	header, _, _ := strings.Cut(first, "\n")
	_, bubble, found := strings.Cut(header, "synctest bubble ")
	if !found {
		return nil
	}
	for _, g := range strings.Split(rest, "\n\n") {
		ofTest := strings.Contains(g, "testing/synctest.testingSynctestTest(") || strings.Contains(g, "internal/synctest.Run(")
		if header, _, _ := strings.Cut(g, "\n"); strings.HasSuffix(header, "synctest bubble "+bubble) && !ofTest {
			others = append(others, g)
		}
	}
	return others
}
