package tablestore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/tablestore"
)

// outboxOf returns a store that takes a commit for failed at once, or never.
func outboxOf(c *aztables.Client, atOnce bool) *tablestore.Store {
	s := open(c)
	if s.SettleAfter(time.Hour); atOnce {
		s.SettleAfter(-time.Hour)
	}
	return s
}

// put puts messages in a transaction of its own, and returns what Commit does.
func put(t testing.TB, s *tablestore.Store, ids ...string) error {
	t.Helper()
	tx := s.Begin()
	must(t, tx.Write(effect("all", fmt.Sprint("put ", time.Now().UnixNano()), "put "+ids[0])))
	for _, id := range ids {
		must(t, s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: id, Topic: "topic", Time: time.Now()}}}))
	}
	return tx.Commit(t.Context())
}

func in(t testing.TB, s *tablestore.Store, state store.OutgoingState) []store.Outgoing {
	t.Helper()
	page, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: state, Limit: 100})
	must(t, err)
	return page
}

// wantIn checks which messages are in a state.
func wantIn(t testing.TB, s *tablestore.Store, state store.OutgoingState, what string, want ...string) {
	t.Helper()
	var got []string
	for _, m := range in(t, s, state) {
		got = append(got, m.Message.ID)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v messages are %q, want %q", what, state, got, want)
	}
}

// intents returns how many there are.
func intents(t testing.TB, c *aztables.Client) int {
	t.Helper()
	return len(entities(t, c, "PartitionKey eq 'once-out'"))
}

// held is the first request of its kind, which arrives when it is told to.
type held struct{ req *policy.Request }

func (h *held) arrive(t testing.TB) string {
	t.Helper()
	if h.req == nil {
		t.Fatal("no request was held back")
	}
	resp, err := h.req.Next()
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return fmt.Sprint(resp.StatusCode, " ", string(body))
}

// holdBack loses the first request that is of a kind until it is told to arrive.
func holdBack(l *line, is func(*policy.Request) bool) *held {
	h := &held{}
	l.set(func(_ int, req *policy.Request) (*http.Response, error) {
		l.mu.Lock()
		first := h.req == nil && is(req)
		if first {
			h.req = req.Clone(context.WithoutCancel(req.Raw().Context()))
		}
		l.mu.Unlock()
		if first {
			return nil, errLost
		}
		return req.Next()
	})
	return h
}

// before calls do once, before the first request that is of a kind.
func before(l *line, is func(*policy.Request) bool, do func()) {
	done := false
	l.set(func(_ int, req *policy.Request) (*http.Response, error) {
		l.mu.Lock()
		now := !done && is(req)
		done = done || now
		l.mu.Unlock()
		if now {
			do()
		}
		return req.Next()
	})
}

// kind returns whether a request has a method, and a text in its URL or body.
func kind(method, text string) func(*policy.Request) bool {
	return func(req *policy.Request) bool {
		if req.Raw().Method != method {
			return false
		}
		if strings.Contains(req.Raw().URL.Path, text) {
			return true
		}
		if req.Body() == nil {
			return false
		}
		body, err := io.ReadAll(req.Body())
		_ = req.RewindBody()
		return err == nil && strings.Contains(string(body), text)
	}
}

var (
	isRename    = kind(http.MethodPost, "DELETE http")
	isDelete    = kind(http.MethodDelete, "once-doc-out")
	isIntentEnd = kind(http.MethodDelete, "once-intent-")
	isMessage   = kind(http.MethodGet, "once-doc-out")
	isBury      = kind(http.MethodPost, `"Tombstone"`)
)

// A commit that is late, and whose writer has gone: a relay that waits leaves the
// intent, so the message is found. One that does not wait refuses the commit.
func TestALateCommitOfAMessage(t *testing.T) {
	for _, buried := range []bool{false, true} {
		l := &line{}
		c := table(t, l)
		writer, relay := outboxOf(c, false), outboxOf(dial(t, nameOf(c)), buried)
		in(t, relay, store.Pending) // learns the time
		h := holdBack(l, isCommit)
		if err := put(t, writer, "a", "b"); !errors.Is(err, once.ErrOutcomeUnknown) {
			t.Fatalf("Commit returned %v", err)
		}
		l.set(nil)
		wantIn(t, relay, store.Pending, "before the commit arrives")
		answer := h.arrive(t)
		if refused := strings.Contains(answer, string(aztables.EntityAlreadyExists)); refused != buried {
			t.Errorf("buried %v: the late commit was answered %s", buried, answer)
		}
		if n, err := count(t.Context(), c, "put a"); err != nil || n != map[bool]int{false: 1}[buried] {
			t.Errorf("buried %v: the transaction has %d effects, %v", buried, n, err)
		}
		want := []string{"a", "b"}
		if buried {
			want = nil
			if n := intents(t, c); n != 0 {
				t.Errorf("%d intents are left", n)
			}
		}
		wantIn(t, relay, store.Pending, "after the commit has arrived", want...)
	}
}

// A transaction whose commit meets a tombstone is a conflict: DoTx runs it again,
// with one effect and one message.
func TestACommitThatMeetsATombstoneRunsAgain(t *testing.T) {
	l := &line{}
	c := table(t, l)
	writer, relay := outboxOf(c, false), outboxOf(dial(t, nameOf(c)), true)
	before(l, isCommit, func() { wantIn(t, relay, store.Pending, "before the commit") })
	runs := 0
	got, err := once.DoTx(t.Context(), writer, pay.For("1"), func(ctx context.Context, tx *tablestore.Tx) (string, error) {
		runs++
		must(t, tx.Write(effect("all", fmt.Sprint("run ", runs), "paid")))
		return fmt.Sprint("run ", runs), writer.PutTx(ctx, tx, []store.Outgoing{{Message: broker.Message{ID: "a", Topic: "topic"}}})
	})
	l.set(nil)
	n, countErr := count(t.Context(), c, "paid")
	if err != nil || countErr != nil || got != "run 2" || n != 1 {
		t.Errorf("DoTx returned %q, %v, with %d effects, %v", got, err, n, countErr)
	}
	wantIn(t, relay, store.Pending, "after the second run", "a")
}

// The commit arrives between the read of its message and the tombstone.
func TestAMessageIsCommittedBeforeItsTombstone(t *testing.T) {
	l, lr := &line{}, &line{}
	c := table(t, l)
	writer, relay := outboxOf(c, false), outboxOf(dial(t, nameOf(c), lr), true)
	in(t, relay, store.Pending)
	h := holdBack(l, isCommit)
	_ = put(t, writer, "a")
	l.set(nil)
	before(lr, isBury, func() { h.arrive(t) })
	wantIn(t, relay, store.Pending, "if the commit wins", "a")
	wantIn(t, relay, store.Pending, "afterwards", "a")
}

// A message is in the batch of its transaction: if the service refuses that, there
// is none.
func TestAMessageOfARefusedTransactionIsNotThere(t *testing.T) {
	c := table(t)
	s := outboxOf(c, false)
	tx, rival := s.Begin(), s.Begin()
	must(t, tx.Write(effect("all", "1", "mine")))
	must(t, s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: "a", Topic: "topic", Time: time.Now()}}}))
	must(t, rival.Write(effect("all", "1", "the rival's")))
	must(t, rival.Commit(t.Context()))
	if err := tx.Commit(t.Context()); err == nil || errors.Is(err, once.ErrOutcomeUnknown) {
		t.Fatalf("a commit that is refused returned %v", err)
	}
	if all := entities(t, c, "PartitionKey eq 'all'"); len(all) != 1 {
		t.Errorf("beside the entity of the rival there is %+v", all)
	}
}

// The commit arrives after the read of its first message, and before that of the
// second one.
func TestACommitArrivesBetweenTheReadsOfItsMessages(t *testing.T) {
	l, lr := &line{}, &line{}
	c := table(t, l)
	writer, relay := outboxOf(c, false), outboxOf(dial(t, nameOf(c), lr), false)
	in(t, relay, store.Pending)
	tx := writer.Begin()
	must(t, tx.Write(effect("all", "1", "1")))
	for _, id := range []string{"a", "b"} {
		must(t, writer.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: id, Topic: "topic", OrderingKey: "k"}}}))
	}
	h := holdBack(l, isCommit)
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Fatalf("Commit returned %v", err)
	}
	l.set(nil)
	var names []string
	for _, e := range entities(t, c, "PartitionKey eq 'once-out'") {
		names = append(names, strings.TrimPrefix(e.RowKey, "once-intent-"))
	}
	slices.Sort(names)
	arrived := make(chan struct{})
	isFirst := true
	lr.set(func(_ int, req *policy.Request) (*http.Response, error) {
		if !isMessage(req) {
			return req.Next()
		}
		if !strings.Contains(req.Raw().URL.Path, names[0]) {
			<-arrived
			return req.Next()
		}
		resp, err := req.Next()
		if isFirst {
			isFirst = false
			h.arrive(t)
			close(arrived)
		}
		return resp, err
	})
	// With a topic, the order is that of the store alone.
	page, err := relay.Outgoing(t.Context(), store.OutgoingQuery{Topic: "topic"})
	must(t, err)
	if len(page) != 2 || page[0].Message.ID != "a" {
		t.Errorf("%d messages were read: %v", len(page), page)
	}
}

// A message is sent between the read of its intent and that of the message.
func TestAMessageIsSentWhileAnotherRelayReads(t *testing.T) {
	lr := &line{}
	c := table(t)
	a, b := outboxOf(c, true), outboxOf(dial(t, nameOf(c), lr), true)
	must(t, put(t, a, "a", "b"))
	page := in(t, a, store.Pending)
	sending := sync.OnceFunc(func() {
		n, err := a.Sent(t.Context(), [16]byte{}, page[:1], store.Delete)
		if n != 1 || err != nil {
			t.Errorf("Sent returned %d, %v", n, err)
		}
	})
	lr.set(func(_ int, req *policy.Request) (*http.Response, error) {
		if isMessage(req) {
			sending() // all wait for it: messages are read at once
		}
		return req.Next()
	})
	wantIn(t, b, store.Pending, "while the first is sent", page[1].Message.ID)
	lr.set(nil)
	wantIn(t, b, store.Pending, "afterwards", page[1].Message.ID)
	if n := intents(t, c); n != 1 {
		t.Errorf("there are %d intents", n)
	}
}

// A commit that was refused for certain leaves no intents.
func TestARefusedCommitEndsItsIntents(t *testing.T) {
	c := table(t)
	s := outboxOf(c, false)
	write(t, c, aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: "all", RowKey: "there"}})
	tx := s.Begin()
	must(t, tx.Write(effect("all", "there", "x")))
	for _, id := range []string{"a", "b"} {
		must(t, s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: id, Topic: "topic"}}}))
	}
	if err := tx.Commit(t.Context()); err == nil || errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("Commit returned %v", err)
	}
	if n := intents(t, c); n != 0 {
		t.Errorf("%d intents are left", n)
	}
}

// Whichever request or reply of a call is lost, no message is lost, and what was
// put and not committed is not read. What is left is cleaned by whoever reads it.
func TestLostRequestsOfTheOutbox(t *testing.T) {
	l := &line{}
	c := table(t, l)
	calm := dial(t, nameOf(c))
	for fault, lose := range map[string]func(*policy.Request) (*http.Response, error){"request": loseRequest, "reply": loseReply} {
		for _, then := range []string{"put", "put two", "move", "remove"} {
			for lost := 1; ; lost++ {
				s, relay := outboxOf(c, true), outboxOf(calm, true)
				in(t, s, store.Pending)
				name := fmt.Sprint(then, ": ", fault, " ", lost)
				var page []store.Outgoing
				if !strings.HasPrefix(then, "put") {
					must(t, put(t, s, "a", "b"))
					page = in(t, s, store.Pending)
				}
				l.set(func(n int, req *policy.Request) (*http.Response, error) {
					if n == lost {
						return lose(req)
					}
					return req.Next()
				})
				var err error
				switch then {
				case "put":
					err = put(t, s, "a")
				case "put two":
					err = put(t, s, "a", "b")
				case "move":
					_, err = s.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held)
				case "remove":
					_, err = s.RemoveOutgoing(t.Context(), [16]byte{}, page)
				}
				requests := l.count()
				l.set(nil)
				pending, moved := in(t, relay, store.Pending), in(t, relay, store.Held)
				all := len(pending) + len(moved)
				switch then {
				case "put", "put two":
					n, countErr := count(t.Context(), calm, "put a")
					must(t, countErr)
					if committed := n > 0; committed != (all > 0) || err == nil && !committed || all == 1 && then == "put two" {
						t.Errorf("%s: %d messages with %d effects, %v", name, all, n, err)
					}
				case "move":
					if all != 2 || err == nil && len(moved) != 2 {
						t.Errorf("%s: %d messages are Pending and %d Held, %v", name, len(pending), len(moved), err)
					}
					// A later try is not in the way of what is left of the first.
					_, err := relay.MoveOutgoing(t.Context(), [16]byte{}, pending, store.Held)
					must(t, err)
					wantIn(t, relay, store.Held, name+", and again", "a", "b")
				case "remove":
					if err == nil && all != 0 {
						t.Errorf("%s: %d messages are left", name, all)
					}
				}
				for _, e := range entities(t, calm, "Name eq 'put a'") {
					_, err := calm.DeleteEntity(t.Context(), e.PartitionKey, e.RowKey, nil)
					must(t, err)
				}
				for _, state := range []store.OutgoingState{store.Pending, store.Held} {
					_, err := relay.RemoveOutgoing(t.Context(), [16]byte{}, in(t, relay, state))
					must(t, err)
					wantIn(t, relay, state, name+", at its end")
				}
				if n := intents(t, calm); n != 0 {
					t.Errorf("%s: %d intents are left", name, n)
				}
				if requests < lost || t.Failed() {
					break
				}
			}
		}
	}
}

// A rename is late. Its tombstone refuses it, and the message can still get that
// name in a second try.
func TestALateRename(t *testing.T) {
	l := &line{}
	c := table(t, l)
	a, b := outboxOf(c, true), outboxOf(dial(t, nameOf(c)), true)
	must(t, put(t, a, "a"))
	page := in(t, a, store.Pending)
	h := holdBack(l, isRename)
	if n, err := a.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held); n != 0 || err == nil {
		t.Errorf("MoveOutgoing returned %d, %v", n, err)
	}
	l.set(nil)
	wantIn(t, b, store.Held, "before the rename arrives")
	if answer := h.arrive(t); !strings.Contains(answer, string(aztables.EntityAlreadyExists)) {
		t.Errorf("the late rename was answered %s", answer)
	}
	wantIn(t, b, store.Pending, "after the rename was refused", "a")
	n, err := b.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held)
	if n != 1 || err != nil {
		t.Errorf("MoveOutgoing again returned %d, %v", n, err)
	}
	wantIn(t, b, store.Held, "after the second rename", "a")
	wantIn(t, b, store.Pending, "after the second rename")
}

// A relay that has found a tombstone and an old intent is slow to delete the
// intent. Meanwhile another one replaces the tombstone by the message.
func TestATombstoneIsReplacedWhileItsIntentIsDeleted(t *testing.T) {
	for what, moment := range map[string]func(*policy.Request) bool{"before the intent is deleted": isIntentEnd, "before the tombstone": isBury} {
		l, lr := &line{}, &line{}
		c := table(t, l)
		a, b, slow := outboxOf(c, false), outboxOf(dial(t, nameOf(c)), false), outboxOf(dial(t, nameOf(c), lr), true)
		must(t, put(t, a, "a"))
		page := in(t, a, store.Pending)
		in(t, slow, store.Pending)
		holdBack(l, isRename)
		_, _ = a.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held) // leaves an intent
		l.set(nil)
		before(lr, moment, func() {
			n, err := b.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held)
			if n != 1 || err != nil {
				t.Errorf("MoveOutgoing returned %d, %v", n, err)
			}
		})
		in(t, slow, store.Held)
		wantIn(t, a, store.Held, what, "a")
		wantIn(t, slow, store.Held, what, "a")
	}
}

// A message gets its name back between its deletion under it and that of the
// intent.
func TestAMessageGetsItsNameBack(t *testing.T) {
	l := &line{}
	c := table(t, l)
	a, b := outboxOf(c, false), outboxOf(dial(t, nameOf(c)), false)
	must(t, put(t, a, "a"))
	page := in(t, a, store.Pending)
	before(l, isIntentEnd, func() {
		n, err := b.MoveOutgoing(t.Context(), [16]byte{}, in(t, b, store.Held), store.Pending)
		if n != 1 || err != nil {
			t.Errorf("the move back returned %d, %v", n, err)
		}
	})
	n, err := a.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held)
	if n != 1 || err != nil {
		t.Errorf("MoveOutgoing returned %d, %v", n, err)
	}
	l.set(nil)
	wantIn(t, a, store.Pending, "after it was moved and moved back", "a")
}

// Of two relays that end a message one is told so, however late the other is.
func TestTwoRelaysEndAMessage(t *testing.T) {
	l := &line{}
	c := table(t, l)
	a, b := outboxOf(c, true), outboxOf(dial(t, nameOf(c)), true)
	must(t, put(t, a, "a"))
	page := in(t, a, store.Pending)
	before(l, isDelete, func() {
		if n, err := b.Sent(t.Context(), [16]byte{}, page, store.Delete); n != 1 || err != nil {
			t.Errorf("Sent returned %d, %v", n, err)
		}
	})
	if n, err := a.Sent(t.Context(), [16]byte{}, page, store.Delete); n != 0 || err != nil {
		t.Errorf("the later Sent returned %d, %v", n, err)
	}
	if n := intents(t, c); n != 0 {
		t.Errorf("%d intents are left", n)
	}
}

// Documents in another partition than the rows are refused before anything is
// sent, and so are messages of a transaction that has no partition.
func TestMessagesAreInThePartitionOfTheTransaction(t *testing.T) {
	l := &line{}
	s := open(table(t, l))
	tx := s.Begin()
	err := s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: "a", Topic: "topic"}}})
	if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "before you put messages") {
		t.Errorf("without a partition, PutTx returned %v", err)
	}
	must(t, tx.Write(effect("all", "1", "1")))
	for i := range 100 {
		must(t, s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: fmt.Sprint(i), Topic: "topic"}}}))
	}
	l.set(nil)
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrInvalid) || l.count() != 0 {
		t.Errorf("Commit of 101 entities returned %v after %d requests", err, l.count())
	}
}

// Forget deletes tombstones, and documents of ordering keys, when they are past
// their time, and no messages.
func TestForgetDeletesTombstones(t *testing.T) {
	c := table(t)
	s := outboxOf(c, true)
	must(t, put(t, s, "a"))
	past := aztables.EDMDateTime(time.Now().Add(-time.Hour))
	for n, due := range []aztables.EDMDateTime{past, aztables.EDMDateTime(time.Now().Add(time.Hour))} {
		write(t, c, aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: "all", RowKey: fmt.Sprint("once-doc-out.a.0.", n)},
			Properties: map[string]any{"Tombstone": true, "Due": due}})
	}
	if n, err := s.Forget(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("Forget returned %d, %v", n, err)
	}
	if left := entities(t, c, "Tombstone eq true"); len(left) != 1 {
		t.Errorf("%d tombstones are left", len(left))
	}
	wantIn(t, s, store.Pending, "after Forget", "a")
}

// Two readers clean up the intent of a commit that is late, or of a rename, at
// once. What comes later finds a tombstone, and has an intent again.
func TestTwoReadersCleanUp(t *testing.T) {
	isReplaced := kind(http.MethodPut, `"Tombstone"`)
	for what, moment := range map[string]func(*policy.Request) bool{"before the tombstone": isBury, "before it is replaced": isReplaced,
		"before the intent is deleted": isIntentEnd} {
		for _, renamed := range []bool{false, true} {
			l, lr := &line{}, &line{}
			c := table(t, l)
			writer, other := outboxOf(c, false), outboxOf(dial(t, nameOf(c)), true)
			slow := outboxOf(dial(t, nameOf(c), lr), true)
			in(t, slow, store.Held) // learns the time
			state, isLate := store.Pending, isCommit
			var page []store.Outgoing
			if renamed {
				must(t, put(t, writer, "a"))
				page = in(t, writer, store.Pending)
				state, isLate = store.Held, isRename
			}
			late := holdBack(l, isLate)
			if renamed {
				_, _ = writer.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held)
			} else {
				_ = put(t, writer, "a")
			}
			l.set(nil)
			reached := false
			second := func() {
				before(lr, moment, func() {
					reached = true
					wantIn(t, other, state, what+", for the other reader")
					if renamed { // and then the rename is tried again
						n, err := writer.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held)
						if n != 1 || err != nil {
							t.Errorf("%s: MoveOutgoing returned %d, %v", what, n, err)
						}
					}
				})
			}
			if second(); strings.Contains(what, "replaced") { // a third reader has written the tombstone that the slow one replaces
				before(lr, isBury, func() {
					wantIn(t, outboxOf(dial(t, nameOf(c)), true), state, what+", for a third reader")
					second()
				})
			}
			in(t, slow, state)
			lr.set(nil)
			if !reached {
				t.Errorf("%s, renamed %v: the slow reader did not get there", what, renamed)
			}
			answer := late.arrive(t)
			if !strings.Contains(answer, string(aztables.EntityAlreadyExists)) && !strings.Contains(answer, "NotFound") &&
				!strings.Contains(answer, string(aztables.UpdateConditionNotSatisfied)) {
				t.Errorf("%s, renamed %v: what is late was answered %s", what, renamed, answer)
			}
			var want []string
			if renamed {
				want = []string{"a"}
			}
			for _, s := range []*tablestore.Store{slow, other, writer} {
				wantIn(t, s, state, what, want...)
			}
			all := len(in(t, other, store.Pending)) + len(in(t, other, store.Held))
			if wanted := map[bool]int{true: 1}[renamed]; all != wanted || intents(t, c) != wanted {
				t.Errorf("%s, renamed %v: there are %d messages, and %d intents", what, renamed, all, intents(t, c))
			}
		}
	}
}

// The first request of a rename arrives after its second try, whatever has become
// of the message since.
func TestARenameArrivesAfterItsSecondTry(t *testing.T) {
	for _, then := range []string{"it is held", "it gets its name back", "it is sent"} {
		l := &line{}
		c := table(t, l)
		a, b := outboxOf(c, false), outboxOf(dial(t, nameOf(c)), true)
		must(t, put(t, a, "a"))
		page := in(t, a, store.Pending)
		h := holdBack(l, isRename)
		if n, err := a.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held); n != 0 || err == nil {
			t.Errorf("MoveOutgoing returned %d, %v", n, err)
		}
		l.set(nil)
		move := func(ms []store.Outgoing, to store.OutgoingState) {
			t.Helper()
			if n, err := a.MoveOutgoing(t.Context(), [16]byte{}, ms, to); n != 1 || err != nil {
				t.Errorf("MoveOutgoing returned %d, %v", n, err)
			}
		}
		move(page, store.Held)
		pending, held := []string(nil), []string{"a"}
		switch then {
		case "it gets its name back":
			move(in(t, a, store.Held), store.Pending)
			pending, held = held, pending
		case "it is sent":
			n, err := a.Sent(t.Context(), [16]byte{}, in(t, a, store.Held), store.Delete)
			if held = nil; n != 1 || err != nil {
				t.Errorf("Sent returned %d, %v", n, err)
			}
		}
		if answer := h.arrive(t); strings.Contains(answer, "204 No Content") {
			t.Errorf("%s: the first request of the rename was answered %s", then, answer)
		}
		for _, s := range []*tablestore.Store{a, b} {
			wantIn(t, s, store.Pending, then, pending...)
			wantIn(t, s, store.Held, then, held...)
		}
		if n := intents(t, c); n != len(pending)+len(held) {
			t.Errorf("%s: there are %d intents", then, n)
		}
	}
}

// The tombstone that refuses a rename is forgotten before it is read.
func TestATombstoneIsForgottenWhileItIsInTheWay(t *testing.T) {
	l := &line{}
	c := table(t, l)
	calm := dial(t, nameOf(c))
	a, reader := outboxOf(c, false), outboxOf(calm, true)
	must(t, put(t, a, "a"))
	page := in(t, a, store.Pending)
	holdBack(l, isRename)
	_, _ = a.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held)
	l.set(nil)
	wantIn(t, reader, store.Held, "after the request was lost") // leaves a tombstone
	tombs := entities(t, calm, "Tombstone eq true")
	if len(tombs) != 1 {
		t.Fatalf("there are %d tombstones", len(tombs))
	}
	before(l, kind(http.MethodGet, tombs[0].RowKey), func() {
		_, err := calm.DeleteEntity(t.Context(), tombs[0].PartitionKey, tombs[0].RowKey, nil)
		must(t, err)
	})
	if n, err := a.MoveOutgoing(t.Context(), [16]byte{}, page, store.Held); n != 1 || err != nil {
		t.Errorf("MoveOutgoing returned %d, %v", n, err)
	}
	l.set(nil)
	wantIn(t, a, store.Pending, "after the rename")
	wantIn(t, a, store.Held, "after the rename", "a")
	if n := intents(t, c); n != 1 {
		t.Errorf("there are %d intents", n)
	}
}
