//go:build go1.25

package outbox_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// configured is a store with the options of another process.
type configured struct {
	*memstore.Store
	options *once.Options
}

func (c configured) Options() *once.Options { return c.options }

func (b *bench) with(how once.Sealing) configured {
	return configured{b.store, once.Options{Sealing: how}.Ready()}
}

func ringOf(t testing.TB, ids ...string) *once.Ring {
	t.Helper()
	var all []once.Secret
	for _, id := range ids {
		all = append(all, once.Secret{ID: id, Bytes: bytes.Repeat([]byte(id), 32)})
	}
	ring, err := once.NewRing(all...)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// putAs commits messages of a process with these options.
func (b *bench) putAs(how once.Sealing, ms ...*broker.Message) {
	b.Helper()
	tx := b.store.Begin()
	b.must(outbox.New(b.with(how), nil).Put(b.Context(), tx, ms...))
	b.must(tx.Commit())
}

// plain puts rows as a program in another language does.
func (b *bench) plain(ms ...*broker.Message) {
	b.Helper()
	tx := b.store.Begin()
	for _, m := range ms {
		b.must(b.store.PutTx(b.Context(), tx, []store.Outgoing{{Message: *m}}))
	}
	b.must(tx.Commit())
}

func (b *bench) stored(state store.OutgoingState) []store.Outgoing {
	b.Helper()
	ms, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: state})
	b.must(err)
	return ms
}

func TestSealedMessagesArePublishedAsTheyWerePut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		how := once.Sealing{Ring: ringOf(t, "a"), Only: once.SealOutbox}
		at := time.Date(2026, 3, 4, 5, 6, 7, 89_000, time.UTC)
		put := []*broker.Message{
			{ID: "1", Topic: "orders", OrderingKey: "k", Body: []byte("secret body"), Header: map[string]string{"who": "secret name"}, Time: at},
			{ID: "2", Topic: "orders", Time: at},
			{ID: "3", Topic: "orders", Body: []byte("secret body"), Header: map[string]string{store.SealedHeader: "says who"}, Time: at},
		}
		b.putAs(how, put...)
		for _, m := range b.stored(store.Pending) {
			if bytes.Contains(m.Message.Body, []byte("secret")) || len(m.Message.Header) != 1 || m.Message.Header[store.SealedHeader] == "" {
				t.Errorf("what is stored can be read: %q %v", m.Message.Body, m.Message.Header)
			}
		}
		peeked, err := outbox.Admin{Store: b.with(how)}.List(t.Context(), store.OutgoingQuery{State: store.Pending})
		if err != nil || len(peeked) != 3 || string(peeked[0].Message.Body) != "secret body" || peeked[0].Message.Header["who"] != "secret name" {
			t.Errorf("a person with the secret sees %v, %v", peeked, err)
		}
		blind, err := outbox.Admin{Store: b.store}.List(t.Context(), store.OutgoingQuery{State: store.Pending})
		if err != nil || len(blind) != 3 || blind[0].Unopened == nil || !strings.Contains(blind[0].Unopened.Error(), `"a"`) {
			t.Errorf("a person without it sees %v, %v", blind, err)
		}
		r := b.relay()
		r.Store = b.with(how)
		stop := b.run(r)
		b.until("all are published", func() bool { return len(b.sender.taken()) == 3 })
		stop()
		for _, m := range b.sender.took {
			was := put[slices.IndexFunc(put, func(p *broker.Message) bool { return p.ID == m.ID })]
			header := maps.Clone(m.Header)
			delete(header, outbox.SeqHeader)
			want := maps.Clone(was.Header)
			delete(want, store.SealedHeader)
			if !bytes.Equal(m.Body, was.Body) || !maps.Equal(header, want) || !m.Time.Equal(at) {
				t.Errorf("published is %q %v %v, put was %q %v %v", m.Body, header, m.Time, was.Body, want, at)
			}
		}
	})
}

// A message that cannot be opened is neither published nor dropped, and a
// person can list it. It is published when its secret is available.
func TestAMessageThatCannotBeOpenedIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.putAs(once.Sealing{Ring: ringOf(t, "a")}, message("1st", "k"))
		b.putAs(once.Sealing{Ring: ringOf(t, "b")}, message("2nd", "k"), message("free", ""))
		r := b.relay()
		r.Retry = outbox.Retry{Attempts: 2, First: time.Second, Limit: time.Second}
		r.Store = b.with(once.Sealing{Ring: ringOf(t, "b")})
		stop := b.run(r)
		more := 0
		b.until("it is stuck", func() bool {
			b.putAs(once.Sealing{Ring: ringOf(t, "b")}, message("more"+string(rune('a'+more%26)), ""))
			more++
			return len(b.rows(store.Stuck)) == 1
		})
		stop()
		stuck := b.stored(store.Stuck)[0]
		if stuck.Message.ID != "1st" || !strings.Contains(stuck.Reason, `sealed with the secret "a"`) {
			t.Errorf("stuck is %v", stuck)
		}
		if taken := b.sender.taken(); slices.Contains(taken, "1st") || slices.Contains(taken, "2nd") || !slices.Contains(taken, "free") {
			t.Errorf("published: %v", taken)
		}
		r.Store = b.with(once.Sealing{Ring: ringOf(t, "b", "a")})
		tally, err := outbox.Admin{Store: r.Store}.Replay(t.Context(), store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "the secret is back"})
		if err != nil || tally.Changed != 1 {
			t.Fatalf("replayed %v, %v", tally, err)
		}
		stop = b.run(r)
		b.until("both are published", func() bool {
			return slices.Contains(b.sender.taken(), "1st") && slices.Contains(b.sender.taken(), "2nd")
		})
		stop()
		b.wantOrder("k")
		for _, m := range b.sender.took {
			if m.ID == "1st" && string(m.Body) != "body of 1st" {
				t.Errorf("published sealed: %q", m.Body)
			}
		}
	})
}

// While the relay has none of the secrets, no message is blamed, as during an
// outage of the broker.
func TestRelayWithoutSecretsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		all := some(20, "m", "")
		b.putAs(once.Sealing{Ring: ringOf(t, "a")}, all...)
		r := b.relay()
		r.Retry = outbox.Retry{Attempts: 1, First: time.Second}
		stop := b.run(r)
		b.until("it has tried", func() bool { return r.Stats.Refused.Load() > 5 })
		stop()
		if n := len(b.rows(store.Pending)) + len(b.rows(store.Held)); n != 20 || b.sender.called() > 0 {
			t.Errorf("%d of 20 wait, and the broker was called %d times", n, b.sender.called())
		}
		r.Store = b.with(once.Sealing{Ring: ringOf(t, "a")})
		stop = b.run(r)
		b.until("all are published", func() bool { return len(b.sender.taken()) == 20 })
		stop()
		b.wantAll(all)
	})
}

func TestForgedMessagesAreNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		only := once.Sealing{Ring: ringOf(t, "a"), Only: once.SealOutbox}
		b.putAs(only, message("true", ""))
		sealed := b.stored(store.Pending)[0].Message
		copied := func(id string, change func(*broker.Message)) *broker.Message {
			m := sealed
			m.ID, m.Body, m.Header = id, bytes.Clone(sealed.Body), maps.Clone(sealed.Header)
			change(&m)
			return &m
		}
		b.plain(message("plain", ""), copied("moved", func(*broker.Message) {}),
			copied("true", func(m *broker.Message) { m.Topic = "refunds" }), copied("true", func(m *broker.Message) { m.OrderingKey = "k" }),
			copied("true", func(m *broker.Message) { m.Body[50] ^= 1 }), copied("true", func(m *broker.Message) { m.Body = nil }))
		r := b.relay()
		r.Store = b.with(only)
		stop := b.run(r)
		b.until("six are stuck", func() bool { return len(b.rows(store.Stuck)) == 6 })
		stop()
		if taken := b.sender.taken(); !slices.Equal(taken, []string{"true"}) {
			t.Errorf("published: %v", taken)
		}
		for _, m := range b.stored(store.Stuck) {
			if m.Reason == "" || m.Message.ID == "plain" && !strings.Contains(m.Reason, "not sealed") {
				t.Errorf("%s is stuck without saying why: %q", m.Message.ID, m.Reason)
			}
		}
		// Where plain rows are accepted, programs that do not seal go on.
		b.plain(message("from elsewhere", ""))
		r.Store = b.with(once.Sealing{Ring: ringOf(t, "a"), Only: once.SealOutcomes | once.SealShelf})
		stop = b.run(r)
		b.until("it is published", func() bool { return slices.Contains(b.sender.taken(), "from elsewhere") })
		stop()
	})
}

func TestARelayRefusesInvalidSealing(t *testing.T) {
	b := newBench(t)
	r := b.relay()
	r.Store = b.with(once.Sealing{Only: once.SealOutbox})
	if err := r.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("a relay began: %v", err)
	}
	if err := outbox.New(b.with(once.Sealing{Only: once.SealOutbox}), nil).Put(t.Context(), b.store.Begin(), message("1", "")); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("a message was put: %v", err)
	}
}

// With Overtaking, a message that cannot be opened does not reach the broker,
// so later ones of its key are not published either.
func TestNoMessageOvertakesOneThatCannotBeOpened(t *testing.T) {
	for name, c := range map[string]struct {
		how  once.Sealing // of the message that cannot be opened
		only once.Parts
	}{
		"its secret is missing": {how: once.Sealing{Ring: ringOf(t, "b")}},
		"it is plain":           {only: once.SealOutbox},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				known := once.Sealing{Ring: ringOf(t, "a"), Only: c.only}
				b.putAs(known, message("1st", "k"))
				b.putAs(c.how, message("2nd", "k"))
				b.putAs(known, message("3rd", "k"), message("free", ""))
				r := b.relay()
				r.Overtaking, r.Store = true, b.with(known)
				stop := b.run(r)
				b.until("the others are published", func() bool { return slices.Contains(b.sender.taken(), "free") })
				time.Sleep(time.Minute)
				stop()
				if taken := b.sender.taken(); slices.Contains(taken, "2nd") || slices.Contains(taken, "3rd") || !slices.Contains(taken, "1st") {
					t.Errorf("published: %v", taken)
				}
			})
		})
	}
}
