package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
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
	return configured{b.store, once.Options{Sealing: how, Logger: b.store.Options().Logger}.Ready()}
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

func shelf(t *testing.T, s store.Shelf, states ...store.ShelfState) []store.Shelved {
	t.Helper()
	found, err := s.Shelved(t.Context(), store.ShelfQuery{States: states})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A message that fails is sealed on the shelf together with its reason, in each
// mode, and handled unsealed from there.
func TestShelvedMessagesAreSealed(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(s configured, handle func(*broker.Message) error) inbox.Handler{
		"Tx": func(s configured, handle func(*broker.Message) error) inbox.Handler {
			return inbox.Tx(s, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error { return handle(m) })
		},
		"Batch": func(s configured, handle func(*broker.Message) error) inbox.Handler {
			return inbox.Batch(s, func(_ context.Context, _ *memstore.Tx, ms []*broker.Message) error {
				for _, m := range ms {
					if err := handle(m); err != nil {
						return err
					}
				}
				return nil
			})
		},
		"Do": func(s configured, handle func(*broker.Message) error) inbox.Handler {
			return inbox.Do(s, &once.Operation[string]{Name: "letters", OnUnknown: once.Resend},
				func(_ context.Context, _ once.Key, m *broker.Message) (string, error) { return "sent", handle(m) })
		},
	} {
		for _, checkpoint := range []bool{false, true} {
			if checkpoint && name == "Do" {
				continue
			}
			t.Run(name+map[bool]string{true: " with a position"}[checkpoint], func(t *testing.T) {
				onBench(t, func(t *testing.T, b *bench) {
					s := b.with(once.Sealing{Ring: ringOf(t, "a"), Only: once.SealAll})
					var broken atomic.Bool
					broken.Store(true)
					handle := func(m *broker.Message) error {
						if string(m.Body) != "secret body" || m.Header["who"] != "secret name" {
							t.Errorf("handled is %q %v", m.Body, m.Header)
						}
						if broken.Load() {
							return once.NotDone(once.Permanent(errors.New("a secret reason")))
						}
						b.called(m)
						return nil
					}
					c := &inbox.Consumer{Name: "letters", Source: b.broker.Queue("letters"), Retry: retryAtOnce(2), Handler: handler(s, handle)}
					if checkpoint {
						c.Source, c.Checkpoint = b.broker.Log("letters", "", 1), true
					} else {
						b.broker.Bind("letters", "letters")
					}
					start(t, c)
					b.publish("letters", &broker.Message{ID: "1", Body: []byte("secret body"), Header: map[string]string{"who": "secret name"}})
					await(t, "parked", func() bool { return len(shelf(t, b.store, store.Parked)) == 1 })
					raw := shelf(t, b.store)[0]
					if strings.Contains(string(raw.Message.Body)+raw.Message.Header["who"]+raw.Reason, "secret") {
						t.Errorf("what is stored can be read: %q %v, %s", raw.Message.Body, raw.Message.Header, raw.Reason)
					}
					await(t, "the key is parked", func() bool {
						return checkpoint || get(t, b.store, once.Key{Operation: "letters", ID: "1"}).Status == once.Parked
					})
					if rec := get(t, b.store, once.Key{Operation: "letters", ID: "1"}); strings.Contains(rec.Reason, "secret") {
						t.Errorf("why its key is parked can be read: %s", rec.Reason)
					}
					admin := inbox.Admin{Store: s}
					found, err := admin.List(t.Context(), store.ShelfQuery{})
					if err != nil || len(found) != 1 || string(found[0].Message.Body) != "secret body" || !strings.Contains(found[0].Reason, "a secret reason") {
						t.Fatalf("a person with the secret sees %v, %v", found, err)
					}
					broken.Store(false)
					if tally, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"}); err != nil || tally.Changed != 1 {
						t.Fatalf("replayed %v, %v", tally, err)
					}
					await(t, "handled", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.calls["1"] == 1 })
					b.publish("letters", &broker.Message{ID: "2", Body: []byte("secret body"), Header: map[string]string{"who": "secret name"}})
					await(t, "handled at once", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.calls["2"] == 1 })
					if !checkpoint { // there it is another place in the log
						b.publish("letters", &broker.Message{ID: "2", Body: []byte("secret body"), Header: map[string]string{"who": "secret name"}})
					}
					b.publish("letters", &broker.Message{ID: "3", Body: []byte("secret body"), Header: map[string]string{"who": "secret name"}})
					await(t, "the one after a duplicate is handled", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.calls["3"] == 1 })
					if left := shelf(t, b.store, store.Parked, store.Waiting); len(left) > 0 || b.calls["2"] != 1 {
						t.Errorf("a duplicate was handled %d times, and left %v", b.calls["2"], left)
					}
					if checkpoint { // which has no records of keys
						return
					}
					key := once.Key{Operation: "letters", ID: "3"}
					await(t, "its key is done", func() bool { return get(t, b.store, key).Status == once.Done })
					if _, err := s.options.Sealing.Open(get(t, b.store, key)); err != nil { // a plain one is refused
						t.Errorf("its outcome cannot be opened: %v", err)
					}
				})
			})
		}
	}
}

// A message on the shelf that cannot be opened is neither handled nor dropped.
func TestShelvedMessageWaitsForItsSecret(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		waiting := func(id string) store.Shelved {
			m := store.Shelved{Consumer: "letters", Key: id, Message: *message(id), State: store.Waiting}
			m.Message.Topic = "letters"
			return m
		}
		sealed, plain := store.SealShelved(&once.Sealing{Ring: ringOf(t, "a")}, waiting("1")), waiting("3")
		forged := sealed
		forged.Message.ID, forged.Key = "2", "2"
		if err := b.store.Shelve(t.Context(), []store.Shelved{sealed, forged, plain}); err != nil {
			t.Fatal(err)
		}
		consumer := func(ids ...string) *inbox.Consumer {
			s := b.with(once.Sealing{Ring: ringOf(t, ids...), Only: once.SealAll})
			return &inbox.Consumer{Name: "letters", Source: b.broker.Queue("letters"), Retry: retryAtOnce(2),
				Handler: inbox.Tx(s, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error {
					if string(m.Body) != "body of "+m.ID {
						t.Errorf("handled is %q", m.Body)
					}
					b.called(m)
					return nil
				})}
		}
		stop := start(t, consumer("b"))
		await(t, "the plain one is parked, and the other was looked at", func() bool {
			all := shelf(t, b.store)
			return all[2].State == store.Parked && all[0].Version > 1
		})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if m := shelf(t, b.store)[0]; m.State != store.Waiting || m.Attempts != 0 || m.Due <= 0 {
			t.Errorf("without its secret it is %v after %d attempts, due in %v", m.State, m.Attempts, m.Due)
		}
		m := shelf(t, b.store)[0]
		m.Due = 0 // a minute has passed
		if err := b.store.Change(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		second := shelf(t, b.store)[1]
		second.Due = 0
		if err := b.store.Change(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		start(t, consumer("b", "a"))
		await(t, "it is handled", func() bool { return shelf(t, b.store)[0].State == store.Handled || b.handled("1") })
		await(t, "the forged one is parked", func() bool {
			for _, m := range shelf(t, b.store, store.Parked) {
				if m.Message.ID == "2" {
					return true
				}
			}
			return false
		})
		if b.handled("2") || b.handled("3") {
			t.Error("a forged message was handled")
		}
	})
}

func (b *bench) handled(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[id] > 0
}

// Without the secrets, a person still sees that an outcome is unknown, and has
// to assert NotDone.
func TestSealedReasonStillSaysUnknown(t *testing.T) {
	b := newBench(t)
	how := once.Sealing{Ring: ringOf(t, "a")}
	m := store.SealShelved(&how, store.Shelved{Consumer: "letters", Key: "1", State: store.Parked, Reason: store.UnknownOutcome + "cut off at secret",
		Message: broker.Message{ID: "1", Topic: "letters"}})
	if strings.Contains(m.Reason, "secret") || !strings.HasPrefix(m.Reason, store.UnknownOutcome) {
		t.Errorf("the reason is stored as %q", m.Reason)
	}
	if err := b.store.Shelve(t.Context(), []store.Shelved{m}); err != nil {
		t.Fatal(err)
	}
	key := once.Key{Operation: "letters", ID: "1"}
	rec, err := b.store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: 1e9})
	if err == nil {
		err = b.store.Settle(t.Context(), once.Settlement{Fence: once.Fence{Key: key, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Parked})
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]inbox.AdminStore{"without": b.store, "with": b.with(how)} {
		if tally, err := (inbox.Admin{Store: s}).Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "again"}); err != nil || tally.Unknown != 1 {
			t.Errorf("%s the secret: %v, %v", name, tally, err)
		}
	}
}

func get(t *testing.T, s once.Store, k once.Key) once.Record {
	t.Helper()
	rec, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// The history of a message repeats its reason: sealed if the reason is sealed,
// and readable with the secret.
func TestDecisionsRepeatNoSealedReason(t *testing.T) {
	b := newBench(t)
	how := once.Sealing{Ring: ringOf(t, "a")}
	if err := b.store.Shelve(t.Context(), []store.Shelved{store.SealShelved(&how, store.Shelved{Consumer: "letters", Key: "1", State: store.Parked,
		Reason: "no such card: secret number", Message: broker.Message{ID: "1", Topic: "letters"}})}); err != nil {
		t.Fatal(err)
	}
	admin := inbox.Admin{Store: b.with(how)}
	if tally, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"}); err != nil || tally.Changed != 1 {
		t.Fatalf("replayed %v, %v", tally, err)
	}
	again := shelf(t, b.store)[0]
	again.State = store.Parked
	if err := b.store.Change(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if tally, err := admin.Discard(t.Context(), store.ShelfQuery{Consumer: "letters"}, inbox.Decision{By: "me", Reason: "given up"}); err != nil || tally.Changed != 1 {
		t.Fatalf("discarded %v, %v", tally, err)
	}
	if raw := shelf(t, b.store)[0]; strings.Contains(raw.History, "secret") || !strings.Contains(raw.History, "discarded by me: given up") {
		t.Errorf("what people did is stored as %q", raw.History)
	}
	for _, bodiless := range []bool{false, true} {
		shown, err := admin.List(t.Context(), store.ShelfQuery{Bodiless: bodiless})
		if err != nil || len(shown) != 1 || strings.Count(shown[0].History, "(it was parked: no such card: secret number)") != 2 {
			t.Errorf("a person with the secret sees %v, %v", shown, err)
		}
	}
}

// A sealed reason is longer, and can be opened only as a whole.
func TestAReasonThatCannotBeOpenedStaysWhole(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		how, reason := once.Sealing{Ring: ringOf(t, "a")}, store.UnknownOutcome+strings.Repeat("long ", 95)
		if err := b.store.Shelve(t.Context(), []store.Shelved{store.SealShelved(&how, store.Shelved{Consumer: "letters", Key: "1", State: store.Waiting,
			Reason: reason, Message: broker.Message{ID: "1", Topic: "letters"}})}); err != nil {
			t.Fatal(err)
		}
		stop := start(t, &inbox.Consumer{Name: "letters", Source: b.broker.Queue("letters"),
			Handler: inbox.Tx(b.with(once.Sealing{Ring: ringOf(t, "b")}), func(context.Context, *memstore.Tx, *broker.Message) error { return nil })})
		await(t, "it was looked at without the secret", func() bool { return shelf(t, b.store)[0].Version > 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		found, err := inbox.Admin{Store: b.with(how)}.List(t.Context(), store.ShelfQuery{})
		if err != nil || len(found) != 1 || found[0].Reason != reason {
			t.Errorf("with the secret its reason is %v, %v", found, err)
		}
	})
}
