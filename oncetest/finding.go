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

// finding is what is wrong, apart from where.
type finding struct {
	fault  fault
	detail string
}

func (f *finding) Error() string { return f.detail }

type fault int

const (
	broken     fault = iota // Setup, Probe or Forget has failed
	unsteady                // two undisturbed runs differ
	blind                   // the state never changes
	unseen                  // nothing is done through the Process
	runEnded                // Run came back too early, or with an error
	runStays                // and did not come back
	neverAsked              // for messages
	notSettled              // messages, before the deadline
	neverDone               // after that
	double                  // more than in the reference
	lost                    // less
	other                   // something else
	swallowed               // a message by those before it
)

// titles begin the text of a finding.
var titles = map[fault]string{
	broken:     "a function of the Case has failed",
	unsteady:   "the state of two undisturbed runs differs",
	blind:      "Probe shows no effect of any message",
	unseen:     "the service takes no step through its Process",
	runEnded:   "Run has ended, although its context had not",
	runStays:   "Run did not return when its context had ended",
	neverAsked: "Run has done nothing until the deadline",
	notSettled: "not all messages were ever acknowledged",
	neverDone:  "the service did not come to rest before the deadline",
	double:     "work was done more than once",
	lost:       "work was lost",
	other:      "the state is another one",
	swallowed:  "a message was swallowed",
}

// advice is what usually causes a finding, and what to do.
type advice struct{ cause, remedy string }

// general is the advice where the schedule makes no difference.
var general = map[fault]advice{
	broken: {"It returned the error below.", "Mend it first: nothing was proven."},
	unsteady: {"Probe shows something that changes by itself, like a time or a random id, or in no fixed order; or " +
		"the order of effects is left to chance.",
		"Leave that out of the text, and sort its lines."},
	blind: {"Probe looks at another world than Run changes, or the messages were all put aside because their " +
		"handler fails.",
		"Let Probe show what the handler writes: a proof that cannot fail proves nothing."},
	unseen: {"Run gives its handler the store itself, and not what wraps it for its Process. No crash between the steps of " +
		"a handler was tried, because none of them was seen.",
		"Take the store from oncetest.Store or oncetest.Plain, send requests through Transport, or say Step where " +
			"something happens."},
	runEnded: {"A broken session, or a message that fails, has ended the whole service.",
		"Open another session after an error and go on, as inbox.Consumer does, and return when ctx has ended."},
	runStays: {"Something in Run waits without looking at ctx.",
		"Pass ctx on to whatever waits, and return when it has ended."},
	neverAsked: {"Run does not use p.Source(), or waits for something before it does.",
		"Consume from p.Source(), and make all that it waits for in Setup."},
	notSettled: {"The handler fails or hangs when a message comes again, waits for a lease or a lock that nobody " +
		"gives back, or forgets to acknowledge what it takes for a duplicate.",
		"Acknowledge duplicates, give back what you hold with defer, and keep retries shorter than the Deadline of " +
			"the Case."},
	neverDone: {"A message waits on the shelf for its next attempt, the state never stops to change, or a call hangs.",
		"Keep retries shorter than the Deadline of the Case, and let calls end with their context."},
	swallowed: {"The key is too coarse: it names a customer or a second and not one unit of work, so a message is " +
		"taken for a duplicate of another one, and dropped or parked.",
		"Name by the key what must happen once, such as one order; if the messages do mean the same, say so in " +
			"Case.Work."},
}

// explain is the whole text of a finding.
func (pr *prover) explain(err error, s schedule, t *trial, ref reference) string {
	f := &finding{fault: broken}
	if !errors.As(err, &f) {
		f.detail = err.Error()
	}
	keys := strangeKeys(t, ref)
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
		fmt.Fprintf(&b, "  keys:    claimed here, and never in the undisturbed runs: %s\n", strings.Join(keys[:min(len(keys), 4)], ", "))
	}
	if t != nil && len(t.parked) > 0 {
		id := slices.Sorted(maps.Keys(t.parked))[0]
		fmt.Fprintf(&b, "  parked:  %d of the messages; %s because: %s\n", len(t.parked), id, t.parked[id])
	}
	fmt.Fprintf(&b, "  usually: %s\n  do:      %s\n", advice.cause, advice.remedy)
	return b.String()
}

// strangeKeys are those of operations that the reference knows, with ids that it does not.
func strangeKeys(t *trial, ref reference) (names []string) {
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

// advise is the advice for a state that is not the right one.
func (s schedule) advise(f fault, keys []string, unguarded bool, ref reference) advice {
	switch {
	case s.kind == otherID && f == double:
		return advice{"The key is the ID of the message, and a producer that sends its work again can give it a new " +
			"one.",
			"Take the key from the business, such as the order number: inbox.Consumer.Key makes it from the message."}
	case s.kind == forgotten:
		return advice{"A message that is older than its key was taken for a new one.",
			"Keep keys longer than messages can come, and park what is older, as inbox does by Message.Time and " +
				"Policy.KeepKey."}
	case s.kind == laterTime && f == double && len(keys) > 0:
		return advice{"The key is made of the message's time, which changes when a producer sends the message again.",
			"Make the key from what names the work, such as the message's ID or an order number, and from no time."}
	case s.kind == reordered && f != double:
	case f == double && len(keys) > 0:
		return advice{"The same message got another key when it came again: one that is random, or made of a time " +
			"or an attempt.",
			"Make the key from what names the work, such as the message's ID or an order number: the same for each " +
				"delivery."}
	case f == double && (s.kind == crash || s.kind == lostReply) && ref.sentBefore(s.at):
		return advice{"Something was published or requested before the commit, and nothing takes it back when the " +
			"process dies: the next one does it again.",
			"Write events in the transaction and publish them behind it with stable IDs (an outbox), or give a " +
				"request its key as idempotency key (once.Do)."}
	case f == double && unguarded:
		return advice{"Nothing remembers which messages were dealt with: no key was claimed, so a redelivery is " +
			"work like any other.",
			"Claim a key for each message in the transaction that does its work: inbox.Tx, or once.DoTx in a loop " +
				"of your own."}
	case f == double && !ref.inTransaction():
		return advice{"The work was done again because its outcome was unknown, and whoever was asked to do it did not " +
			"know the key.",
			"Hand the key on to a system that knows it, or give the operation a Lookup. Where neither can be, choose Park, " +
				"and say so in Accept of the Case."}
	case f == double:
		return advice{"The work and the record that it was done are not one commit: something is written outside of " +
			"the transaction, or runs before the claim.",
			"Write through the transaction that the handler gets, and send nothing to others without a key of its " +
				"own (once.Do)."}
	case f == lost && (s.kind == crash || s.kind == storm) && ref.ackedEarly():
		return advice{"The message was acknowledged before its work was committed, so nobody delivered it again " +
			"when the process died.",
			"Acknowledge last, after the commit."}
	case f == lost && (s.kind == crash || s.kind == storm || s.kind == lostReply):
		return advice{"A part of the work came after the commit that remembers the message, and the redelivery was " +
			"taken for a duplicate; or the work was parked as unknown.",
			"Put every part into that commit (events by an outbox), or give it a key of its own (once.Do); where " +
				"parking is right, say so in Case.Accept."}
	case f == lost:
		return advice{"A message was taken for a duplicate that was none, or acknowledged although its handler had " +
			"failed.",
			"Name by the key exactly one unit of work, and acknowledge after the commit only."}
	}
	return advice{"The work depends on the order or the number of deliveries, where only messages with one ordering " +
		"key are in order.",
		"Give messages that need an order one ordering key, and claim a key for each message in the transaction of " +
			"its work."}
}

// sentBefore reports whether something was sent to others for the message of a point, up to it.
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

// ackedEarly reports whether anything is done for a message after its acknowledgement, as far as steps tell: with a
// store or others, or not seen because it takes no step.
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

// judge compares a state with the right one.
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

// try goes through a schedule.
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
	if s.kind == crash && !tr.struck {
		t.Logf("oncetest: %s: that step was not reached this time", s.name)
	}
}

// pattern selects a test and no other.
func pattern(t testing.TB) string {
	levels := strings.Split(t.Name(), "/")
	for i, name := range levels {
		levels[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	return strings.Join(levels, "/")
}

// compare tells whether a state shows more than the right one, or less: by the numbers in it, if nothing else differs, or
// else by its lines.
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

// amounts compares words that are numbers. The words are alike if no others differ.
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

// apart are the lines that only one of two texts has, each as often as it has more of them.
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

// difference shows two states apart, for people.
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
