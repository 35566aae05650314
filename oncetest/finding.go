package oncetest

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/effectively-once/once"
)

// finding is what is wrong in a schedule.
type finding struct {
	fault  fault
	detail string
}

func (f *finding) Error() string { return f.detail }

type fault int

const (
	broken     fault = iota // Setup, Probe or Forget failed
	unsteady                // two undisturbed runs differ
	blind                   // the state never changes
	unseen                  // nothing goes through the Process
	runEnded                // Run returned too early, or with an error
	runStays                // Run did not return
	neverAsked              // no messages were received
	notSettled              // messages were not settled before the deadline
	neverDone               // messages were settled, but the state was not final before the deadline
	double                  // the state has more than the reference
	lost                    // the state has less
	other                   // the state is different
	swallowed               // earlier messages have made a message a duplicate
)

// titles are the first lines of findings.
var titles = map[fault]string{
	broken:     "a function of the Case failed",
	unsteady:   "the state of two undisturbed runs differs",
	blind:      "Probe shows no effect of any message",
	unseen:     "the service takes no step through its Process",
	runEnded:   "Run returned before its context ended",
	runStays:   "Run did not return after its context ended",
	neverAsked: "Run did nothing before the deadline",
	notSettled: "not all messages were acknowledged",
	neverDone:  "the state was not final before the deadline",
	double:     "work was done more than once",
	lost:       "work was lost",
	other:      "the state is different",
	swallowed:  "a message was taken for a duplicate",
}

// advice is the usual cause of a finding, and its remedy.
type advice struct{ cause, remedy string }

// general is the advice that does not depend on the schedule.
var general = map[fault]advice{
	broken: {"It returned the error below.", "Fix it first: nothing was proven."},
	unsteady: {"Probe shows something that differs from run to run, such as a time, a random ID or an order of lines; or " +
		"the order of effects is random.",
		"Omit that from the text, and sort its lines."},
	blind: {"Probe reads another world than the one that Run changes, or all messages were set aside because their " +
		"handler fails.",
		"Let Probe show what the handler writes. A proof that cannot fail proves nothing."},
	unseen: {"Run gives its handler the store itself, not the store of its Process. No crash between the steps of a " +
		"handler was tried, because it has no steps.",
		"Use the store that oncetest.Store or oncetest.Plain returns, send requests through Transport, or call Step " +
			"where something happens."},
	runEnded: {"A broken session, or a message that fails, ended the whole service.",
		"After an error, open another session and continue, as inbox.Consumer does. Return when ctx ends."},
	runStays: {"Something in Run waits and ignores ctx.",
		"Pass ctx to everything that waits, and return when it ends."},
	neverAsked: {"Run does not use p.Source(), or waits for something before it does.",
		"Consume from p.Source(), and create what Run waits for in Setup."},
	notSettled: {"The handler fails or hangs when a message is delivered again, waits for a lease or a lock that is never " +
		"released, or does not acknowledge duplicates.",
		"Acknowledge duplicates, release locks with defer, and keep retries shorter than the Deadline of the Case."},
	neverDone: {"A message waits on the shelf for its next attempt, the state keeps changing, or a call hangs.",
		"Keep retries shorter than the Deadline of the Case, and end calls when their context ends."},
	swallowed: {"The key is too coarse: it identifies a customer or a second, not one unit of work. So a message is taken for " +
		"a duplicate of another one, and dropped or parked.",
		"Use a key that identifies what must happen once, such as one order. If the messages do mean the same, say " +
			"so in Case.Work."},
}

// explain returns the whole text of a finding.
func (pr *prover) explain(err error, s schedule, t *trial, ref reference) string {
	f := &finding{fault: broken}
	if !errors.As(err, &f) {
		f.detail = err.Error()
	}
	keys := unknownKeys(t, ref)
	advice, ok := general[f.fault]
	if !ok {
		advice = s.advise(f.fault, keys, len(ref.keys) == 0, ref)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n  window:  %s.\n", s.name, titles[f.fault], s.window)
	if f.detail != "" {
		fmt.Fprintf(&b, "  seen:    %s\n", strings.ReplaceAll(strings.TrimSpace(f.detail), "\n", "\n           "))
	}
	if len(keys) > 0 {
		fmt.Fprintf(&b, "  keys:    claimed here, but not in the undisturbed runs: %s\n", strings.Join(keys[:min(len(keys), 4)], ", "))
	}
	if t != nil && len(t.parked) > 0 {
		id := slices.Sorted(maps.Keys(t.parked))[0]
		fmt.Fprintf(&b, "  parked:  %d of the messages; %s because: %s\n", len(t.parked), id, t.parked[id])
	}
	fmt.Fprintf(&b, "  usually: %s\n  do:      %s\n", advice.cause, advice.remedy)
	return b.String()
}

// unknownKeys returns keys with operations that the reference knows, and with
// IDs that it does not.
func unknownKeys(t *trial, ref reference) (names []string) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known, operations := make(map[once.Key]bool), make(map[string]bool)
	for _, keys := range ref.keys {
		for k := range keys {
			known[k], operations[k.Operation] = true, true
		}
	}
	for _, keys := range t.keys {
		for k := range keys {
			if !known[k] && operations[k.Operation] {
				names = append(names, fmt.Sprintf("%s %q", k.Operation, k.ID))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// advise returns the advice for a wrong state.
func (s schedule) advise(f fault, keys []string, unguarded bool, ref reference) advice {
	switch {
	case s.kind == otherID && f == double:
		return advice{"The key is the ID of the message, but a producer that repeats its work can send a new ID.",
			"Use a key from the business, such as the order number: inbox.Consumer.Key derives it from the message."}
	case s.kind == forgotten:
		return advice{"A message whose key was forgotten was taken for a new one.",
			"Keep keys for longer than messages can be redelivered, and park older messages, as inbox does by " +
				"Message.Time and Policy.KeepKey."}
	case s.kind == laterTime && f == double && len(keys) > 0:
		return advice{"The key contains the message's time, which changes when a producer sends the message again.",
			"Derive the key from what identifies the work, such as the message's ID or an order number."}
	case s.kind == reordered && f != double:
	case f == double && len(keys) > 0:
		return advice{"The same message got another key when it was delivered again: a random one, or one with a time or an " +
			"attempt in it.",
			"Derive the key from what identifies the work, such as the message's ID or an order number. It is the " +
				"same for each delivery."}
	case f == double && (s.kind == crash || s.kind == lostReply) && ref.sentBefore(s.at):
		return advice{"Something was published or requested before the commit. A crash does not undo it, and the next process " +
			"does it again.",
			"Write events in the transaction and publish them after it with stable IDs (an outbox), or send the key " +
				"with a request as its idempotency key (once.Do)."}
	case f == double && unguarded:
		return advice{"Nothing remembers which messages were handled: no key was claimed, so a redelivery is handled like any " +
			"message.",
			"Claim a key for each message in the transaction that does its work: with inbox.Tx, or with once.DoTx " +
				"in your own loop."}
	case f == double && !ref.inTransaction():
		return advice{"The work was done again because its outcome was unknown, and the system that did it did not know the key.",
			"Pass the key to a system that honours it, or give the operation a Lookup. If neither is possible, choose " +
				"Park, and accept that in Case.Accept."}
	case f == double:
		return advice{"The work and its record are not in one commit: something is written outside the transaction, or runs " +
			"before the claim.",
			"Write through the transaction that the handler gets, and send nothing to other systems without a key " +
				"(once.Do)."}
	case f == lost && (s.kind == crash || s.kind == storm) && ref.ackedEarly():
		return advice{"The message was acknowledged before its work was committed, so it was not delivered again after the " +
			"crash.",
			"Acknowledge last, after the commit."}
	case f == lost && (s.kind == crash || s.kind == storm || s.kind == lostReply) && !ref.inTransaction():
		return advice{"Rows were to be written after an effect, in one unit of work. After the crash, Lookup or the record answered " +
			"for all of it; or the work was parked as unknown.",
			"Make the effect a step with its own key, and write the rows after it in the transaction that records the " +
				"message (inbox.DoThenTx, or once.Do before once.DoTx). If parking is right, accept it in Case.Accept."}
	case f == lost && (s.kind == crash || s.kind == storm || s.kind == lostReply):
		return advice{"A part of the work came after the commit that records the message, and the redelivery was taken for a " +
			"duplicate; or the work was parked as unknown.",
			"Put every part into that commit (events with an outbox), or give it its own key (once.Do). If parking " +
				"is right, accept it in Case.Accept."}
	case f == lost:
		return advice{"A message was wrongly taken for a duplicate, or acknowledged although its handler failed.",
			"Use a key that identifies exactly one unit of work, and acknowledge only after the commit."}
	}
	return advice{"The work depends on the order or the number of deliveries, but only messages with the same ordering key " +
		"are in order.",
		"Give messages that need an order the same ordering key, and claim a key for each message in the " +
			"transaction of its work."}
}

// sentBefore reports whether a step up to a point sent something to another
// system, for the same message.
func (ref reference) sentBefore(pt point) bool {
	for _, other := range ref.trace {
		if other.message == pt.message && other.side == after && ref.outside[other.step] {
			return true
		}
		if other == pt {
			break
		}
	}
	return false
}

// ackedEarly reports whether steps for a message follow its acknowledgement, or no
// step commits the work.
func (ref reference) ackedEarly() bool {
	acked := make(map[string]bool)
	commits := false
	for _, pt := range ref.trace {
		switch {
		case pt.side == after && (pt.step == "ack"):
			acked[pt.message] = true
		case acked[pt.message]:
			return true
		case pt.step == "commit" || pt.step == "settle":
			commits = true
		}
	}
	return !commits
}

// judge compares a state with the reference.
func (pr *prover) judge(s schedule, ref reference, state string) error {
	want := ref.state
	if s.kind == alone {
		want = ref.states[0]
	}
	if state == want || pr.accept(want, state) {
		return nil
	}
	f := compare(want, state)
	if s.kind == alone {
		f = swallowed
	}
	return &finding{fault: f, detail: difference(want, state)}
}

// try runs a schedule.
func (pr *prover) try(t testing.TB, s schedule, ref reference) {
	t.Helper()
	wanted := ref.state
	if s.kind == alone {
		wanted = ref.states[0]
	}
	tr, end := pr.begin(t, wanted)
	defer end()
	if s.prepare != nil {
		s.prepare(tr)
	}
	tr.start()
	err := tr.await(true)
	if err == nil {
		err = s.deliver(tr)
	}
	var state string
	if err == nil {
		state, err = tr.finish()
	}
	if err == nil {
		err = pr.judge(s, ref, state)
	}
	if err != nil {
		pr.findings++
		t.Errorf("oncetest: %s  again:   ONCETEST_SEED=%d go test -run "+
			"'%s'\n", pr.explain(err, s, tr, ref), pr.seed, pattern(t))
	}
	if s.kind == crash && !tr.acted {
		t.Logf("oncetest: %s: that step was not reached this time", s.name)
	}
}

// pattern matches exactly one test.
func pattern(t testing.TB) string {
	levels := strings.Split(t.Name(), "/")
	for i, name := range levels {
		levels[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	return strings.Join(levels, "/")
}

// compare reports whether a state has more or less than the reference: by the
// numbers in it if nothing else differs, and else by its lines.
func compare(want, got string) fault {
	more, less, alike := amounts(strings.Fields(want), strings.Fields(got))
	if !alike {
		missing, extra := missingAndExtra(want, got)
		more, less = len(extra) > 0, len(missing) > 0
	}
	switch {
	case more == less:
		return other
	case more:
		return double
	}
	return lost
}

// amounts compares words that are numbers. alike reports whether no other words
// differ.
func amounts(want, got []string) (more, less, alike bool) {
	if len(want) != len(got) {
		return false, false, false
	}
	for i := range want {
		a, noNumber := strconv.ParseFloat(strings.Trim(want[i], ",;:()"), 64)
		b, neither := strconv.ParseFloat(strings.Trim(got[i], ",;:()"), 64)
		if want[i] != got[i] && (noNumber != nil || neither != nil) {
			return false, false, false
		}
		more, less = more || a < b, less || b < a
	}
	return more, less, true
}

// apart returns the lines that each of two texts has more often than the other.
func missingAndExtra(want, got string) (missing, extra []string) {
	count := make(map[string]int)
	for line := range strings.Lines(want) {
		count[strings.TrimRight(line, "\n")]++
	}
	for line := range strings.Lines(got) {
		count[strings.TrimRight(line, "\n")]--
	}
	for _, line := range slices.Sorted(maps.Keys(count)) {
		for n := count[line]; n != 0; {
			if n > 0 {
				missing, n = append(missing, line), n-1
			} else {
				extra, n = append(extra, line), n+1
			}
		}
	}
	return missing, extra
}

// difference shows how two states differ.
func difference(want, got string) string {
	missing, extra := missingAndExtra(want, got)
	var lines []string
	for _, line := range missing {
		lines = append(lines, "- "+line)
	}
	for _, line := range extra {
		lines = append(lines, "+ "+line)
	}
	if len(lines) == 0 {
		lines = []string{"the same lines in another order, or other spaces"}
	}
	const most = 12
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d lines more", len(lines)-most))
	}
	return strings.Join(lines, "\n")
}
