//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

var ann = inbox.Decision{By: "ann", Reason: "ticket 88"}

func (b *bench) admin() inbox.Admin { return inbox.Admin{Store: b.store} }

// registered returns the consumers, each as "name keys".
func (b *bench) registered() (all []string) {
	b.t.Helper()
	found, err := b.store.Consumers(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range found {
		all = append(all, c.Name+" "+c.Keys)
	}
	return all
}

func (b *bench) wantRegistered(want ...string) {
	b.t.Helper()
	if got := b.registered(); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("registered are %q, want %q", got, want)
	}
}

// Processes of the old and the new name work at the same time, before, while and
// after the name is changed. Every message has one effect.
func TestProcessesOfBothNamesShareTheirWork(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		named := func(name string) *inbox.Consumer {
			c := sh.consumer(b, b.effect)
			c.Name = name
			return c
		}
		old := named("billing")
		stop := start(t, old)
		ids := 0
		again := func() {
			t.Helper()
			want := ids + 20
			copies := ids
			if sh.log && sh.name != "log, keys" { // a position does not tell copies
				copies = 0
			}
			b.publish("orders", numbered(want)[ids-copies:]...)
			ids = want
			await(t, "all are handled", func() bool {
				for i := range ids {
					if b.count(fmt.Sprint("m", i)) == 0 {
						return false
					}
				}
				return true
			})
		}
		again()
		if err := named("invoicing").Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Error("before it is renamed, the new name is refused:", err)
		}
		c, err := b.admin().Rename(t.Context(), "billing", "invoicing", ann)
		if err != nil || c.Keys != "billing" || len(c.Rows) != 1 || c.Rows[0].Name != "billing" || c.Into != nil || c.Seen > time.Minute {
			t.Fatalf("%+v, %v", c, err)
		}
		b.wantRegistered("invoicing billing")
		again()
		stopNew := start(t, named("invoicing"))
		again()
		time.Sleep(2 * time.Minute) // of fake time: the old one says that it is at work
		b.wantRegistered("billing billing", "invoicing billing")
		again()
		if err := errors.Join(stop(), stopNew()); err != nil {
			t.Error(err)
		}
		if c, err = b.admin().Rename(t.Context(), "billing", "invoicing", ann); err != nil || len(c.Into) != 1 {
			t.Fatalf("%+v, %v", c, err)
		}
		b.wantRegistered("invoicing billing")
		start(t, named("invoicing"))
		start(t, named("billing")) // a rollback
		again()
		for i := range ids {
			if n := b.count(fmt.Sprint("m", i)); n != 1 {
				t.Errorf("m%d has %d effects", i, n)
			}
		}
	})
}

// A message may be older than its key. Whether it was handled then depends on when
// the consumer was last at work, under whichever name.
func TestUnderAnotherNameAnOldMessageIsStillOld(t *testing.T) {
	for name, run := range map[string]func(b *bench, at func(name string), pass func(), rename func()){
		"the old name starts again": func(b *bench, at func(string), pass, rename func()) {
			at("billing")
			rename()
			pass()
			at("billing")
		},
		"the old name goes on, and the new one starts": func(b *bench, at func(string), pass, rename func()) {
			rename()
			pass()
			at("billing")
			pass()
			at("invoicing")
		},
		"the old name goes on, and is renamed again": func(b *bench, at func(string), pass, rename func()) {
			rename()
			pass()
			at("billing")
			rename()
			pass()
			at("invoicing")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) {
				m := message("m0")
				c := shapes[0].consumer(b, b.effect)
				c.Policy.KeepKey, c.Policy.KeepOutcome = time.Hour, time.Hour
				first := *c
				stop := start(t, &first)
				time.Sleep(time.Millisecond)
				if err := stop(); err != nil { // known to the registry, and has handled nothing
					t.Fatal(err)
				}
				at := func(name string) {
					c := *c
					c.Name, c.Stats = name, new(inbox.Stats)
					stop := start(t, &c)
					if b.count("m0") == 0 {
						m.Time = time.Now()
					}
					copied := *m
					b.publish("orders", &copied)
					await(t, "it is dealt with", func() bool {
						return c.Stats.Handled.Load()+c.Stats.Duplicates.Load()+c.Stats.Parked.Load() > 0
					})
					if err := stop(); err != nil {
						t.Error(err)
					}
				}
				run(b, at, func() {
					time.Sleep(3 * time.Hour)
					if _, err := b.store.Forget(t.Context(), 100); err != nil {
						t.Error(err)
					}
				}, func() {
					if _, err := b.admin().Rename(t.Context(), "billing", "invoicing", ann); err != nil {
						t.Error(err)
					}
				})
				if n := b.count("m0"); n != 1 || len(b.onTheShelf(store.Parked)) != 1 {
					t.Errorf("it has %d effects, and on the shelf is %+v", n, b.onTheShelf())
				}
			})
		})
	}
}

func TestRenameRefuses(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		for _, name := range []string{"billing", "mailing", "billing@2"} {
			if _, err := b.store.Register(t.Context(), store.Consumer{Name: name, Source: "memory queue " + name}); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			from, to string
			by       inbox.Decision
			want     error
		}{
			{"billing", "mailing", ann, store.ErrConsumerState},
			{"billing", "billing", ann, store.ErrConsumerState},
			{"nobody", "x", ann, store.ErrNoConsumer},
			{"billing", "", ann, once.ErrInvalid},
			{"billing", "a/b", ann, once.ErrInvalid},
			{"billing", "a@b", ann, once.ErrInvalid},
			{"billing@2", "x", ann, once.ErrInvalid},
			{"billing", strings.Repeat("x", 250), ann, once.ErrInvalid},
			{"billing", "x\n", ann, once.ErrInvalid},
			{"billing", "x", inbox.Decision{By: "ann"}, once.ErrInvalid},
			{"billing", "x", inbox.Decision{Reason: "why"}, once.ErrInvalid},
		} {
			for _, c.by.DryRun = range []bool{true, false} {
				if _, err := b.admin().Rename(t.Context(), c.from, c.to, c.by); !errors.Is(err, c.want) {
					t.Errorf("%.20q to %.20q by %+v: %v, want %v", c.from, c.to, c.by, err, c.want)
				}
			}
		}
		dry := ann
		dry.DryRun = true
		if c, err := b.admin().Rename(t.Context(), "billing", "invoicing", dry); err != nil || len(c.Rows) != 2 {
			t.Errorf("%+v, %v", c, err)
		}
		b.wantRegistered("billing billing", "billing@2 billing@2", "mailing mailing")
		bare := inbox.Admin{Store: struct{ inbox.AdminStore }{b.store}}
		if _, err := bare.Rename(t.Context(), "billing", "x", ann); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "RenamedFrom") {
			t.Error("a store that cannot:", err)
		}
		if _, err := bare.Retire(t.Context(), "billing", false, ann); !errors.Is(err, errors.ErrUnsupported) {
			t.Error("a store that cannot:", err)
		}
	})
}

// A retired consumer is refused while it is at work. When it is started again, it
// neither does anything again nor passes over anything.
func TestARetiredConsumerDoesNotComeBackByItself(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		consumer := func(shared string) *inbox.Consumer {
			c := sh.consumer(b, b.effect)
			c.SharedWith = shared
			return c
		}
		stop := start(t, consumer(""))
		b.publish("orders", numbered(20)...)
		await(t, "all are handled", func() bool { return b.handledFrom(0, 20) == 20 })
		time.Sleep(3 * time.Minute)
		if _, err := b.admin().Retire(t.Context(), "billing", false, ann); !errors.Is(err, store.ErrConsumerState) {
			t.Error("one that is at work:", err)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(inbox.RetireSilence)
		c, err := b.admin().Retire(t.Context(), "billing", false, ann)
		if err != nil || len(c.Rows) != 1 || sh.log != (len(c.Positions) > 0) {
			t.Fatalf("%+v, %v", c, err)
		}
		time.Sleep(time.Millisecond)
		if _, err := b.admin().Retire(t.Context(), "billing", false, ann); !errors.Is(err, store.ErrConsumerState) {
			t.Error("retired twice:", err)
		}
		b.publish("orders", numbered(40)[20:]...)

		err = consumer("").Run(t.Context())
		if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "ann (ticket 88)") {
			t.Fatal("started again:", err)
		}
		if err := consumer("(retired)").Run(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "no particular retirement") {
			t.Error("shared with any retirement:", err)
		}
		all, err := b.store.Consumers(t.Context())
		if err != nil || len(all) != 1 || !store.IsRetired(all, "billing") || all[0].Seen < inbox.RetireSilence {
			t.Fatalf("%+v, %v", all, err)
		}
		if b.handledFrom(20, 40) > 0 {
			t.Error("a retired consumer has handled messages")
		}
		shared := all[0].Source
		if sh.log {
			if err := consumer(shared).Run(t.Context()); !errors.Is(err, inbox.ErrLogChanged) || !strings.Contains(err.Error(), "was retired when it was at") {
				t.Fatal("before its positions are set:", err)
			}
			for _, p := range c.Positions {
				if err := b.admin().SetPosition(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
		}
		if b.handledFrom(20, 40) > 0 {
			t.Error("it has handled messages before its positions were set")
		}
		start(t, consumer(shared))
		if !sh.log || sh.name == "log, keys" {
			b.publish("orders", numbered(20)...)
		}
		await(t, "it continues", func() bool { return b.handledFrom(0, 40) == 40 })
		time.Sleep(time.Minute)
		for i := range 40 {
			if n := b.count(fmt.Sprint("m", i)); n != 1 {
				t.Errorf("m%d has %d effects", i, n)
			}
		}
	})
}

func (b *bench) handledFrom(from, to int) (n int) {
	for i := from; i < to; i++ {
		if b.count(fmt.Sprint("m", i)) > 0 {
			n++
		}
	}
	return n
}

// paused is the store of a process that stands still: it does not register.
type paused struct {
	*memstore.Store
	still atomic.Bool
}

func (s *paused) Register(ctx context.Context, c store.Consumer) (store.Consumer, error) {
	if s.still.Load() {
		return store.Consumer{}, errors.New("the process is paused")
	}
	return s.Store.Register(ctx, c)
}

// A process that was paused for so long that its consumer could be retired ends,
// and its transactions on positions are refused.
func TestAPausedProcessOfARetiredConsumerEnds(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		t.Run(fmt.Sprint("checkpoint: ", checkpoint), func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) {
				s := &paused{Store: b.store}
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Handler: inbox.Tx(s, b.effect), Stats: new(inbox.Stats)}
				if checkpoint {
					c.Source, c.Checkpoint = b.broker.Log("orders", "billing", 1), true
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				b.publish("orders", message("m0"))
				await(t, "handled", func() bool { return b.count("m0") == 1 })
				s.still.Store(true)
				time.Sleep(2 * inbox.RetireSilence)
				if _, err := b.admin().Retire(t.Context(), "billing", false, ann); err != nil {
					t.Fatal(err)
				}
				want := once.ErrInvalid
				if s.still.Store(false); checkpoint {
					want = inbox.ErrLogChanged
					b.publish("orders", message("m1"))
				}
				testenv.Await(t, "it ends", func() bool { return len(ended) > 0 })
				if err := <-ended; !errors.Is(err, want) || !strings.Contains(err.Error(), "retired") {
					t.Error(err)
				}
				if b.count("m0") != 1 || b.count("m1") != 0 {
					t.Errorf("m0 has %d effects, and m1 %d", b.count("m0"), b.count("m1"))
				}
			})
		})
	}
}

// stumbling is a store that fails at one call of a person, before or after it is
// made, as if the person's process had ended there.
type stumbling struct {
	*memstore.Store
	calls, at int
	after     bool
}

var errStumbled = fmt.Errorf("%w: the process ends here", once.ErrInvalid) // not repeated

func (s *stumbling) step(call func() error) error {
	s.calls++
	if s.calls == s.at && !s.after || s.calls > s.at && s.at > 0 {
		return errStumbled
	}
	err := call()
	if s.calls == s.at {
		return errStumbled
	}
	return err
}

func (s *stumbling) Shelved(ctx context.Context, q store.ShelfQuery) (found []store.Shelved, err error) {
	err = s.step(func() error { found, err = s.Store.Shelved(ctx, q); return err })
	return found, err
}

func (s *stumbling) Change(ctx context.Context, m store.Shelved) error {
	return s.step(func() error { return s.Store.Change(ctx, m) })
}

func (s *stumbling) Settle(ctx context.Context, set once.Settlement) error {
	return s.step(func() error { return s.Store.Settle(ctx, set) })
}

func (s *stumbling) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	err = s.step(func() error { all, err = s.Store.Consumers(ctx); return err })
	return all, err
}

func (s *stumbling) RenameConsumer(ctx context.Context, from, to string) error {
	return s.step(func() error { return s.Store.RenameConsumer(ctx, from, to) })
}

func (s *stumbling) RetireConsumer(ctx context.Context, r store.Retirement) error {
	return s.step(func() error { return s.Store.RetireConsumer(ctx, r) })
}

// Retire discards what is on the shelf only if it is told to. It may end at any
// step: the same call does the rest, and nothing is half retired before it.
func TestRetireIsFinishedByTheSameCall(t *testing.T) {
	retire := func(t *testing.T, at int, after bool) (steps int) {
		onBench(t, func(t *testing.T, b *bench) {
			c := shapes[0].consumer(b, b.failing("bad", once.Permanent(errors.New("poison"))))
			stop := start(t, c)
			b.publish("orders", ordered("bad", "k"))
			await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
			b.publish("orders", ordered("later", "k"))
			await(t, "held", func() bool { return len(b.onTheShelf(store.Waiting)) == 1 })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(inbox.RetireSilence)
			s := &stumbling{Store: b.store}
			admin := inbox.Admin{Store: s}
			if c, err := admin.Retire(t.Context(), "billing", false, ann); !errors.Is(err, store.ErrConsumerState) || c.Parked != 1 || c.Waiting != 1 {
				t.Fatalf("%+v, %v", c, err)
			}
			dry := ann
			dry.DryRun = true
			if c, err := admin.Retire(t.Context(), "billing", true, dry); err != nil || c.Discarded.Changed != 2 || len(b.onTheShelf(store.Discarded)) != 0 {
				t.Fatalf("%+v, %v", c, err)
			}
			s.calls, s.at, s.after = 0, at, after
			_, err := admin.Retire(t.Context(), "billing", true, ann)
			steps = s.calls
			s.at = 0
			if at > 0 {
				if !errors.Is(err, errStumbled) {
					t.Fatal(err)
				}
				all, _ := b.store.Consumers(t.Context())
				done := store.IsRetired(all, "billing")
				if open := len(b.onTheShelf(store.Waiting, store.Parked)); done && open > 0 {
					t.Errorf("retired, and %d messages are on the shelf", open)
				}
				if _, err = admin.Retire(t.Context(), "billing", true, ann); done && errors.Is(err, store.ErrConsumerState) {
					err = nil
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			gone := b.onTheShelf(store.Discarded)
			if all, _ := b.store.Consumers(t.Context()); len(all) != 1 || !store.IsRetired(all, "billing") || len(gone) != 2 {
				t.Fatalf("%+v, and on the shelf: %+v", all, gone)
			}
			if !strings.Contains(gone[0].History, "discarded by ann: ticket 88 (it was parked: ") || !strings.Contains(gone[1].History, "(it was waiting: ") {
				t.Errorf("the history is %q and %q", gone[0].History, gone[1].History)
			}
		})
		return steps
	}
	steps := retire(t, 0, false)
	if steps < 6 {
		t.Fatalf("only %d steps were seen", steps)
	}
	for at := 1; at <= steps; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d, after it: %v", at, after), func(t *testing.T) { retire(t, at, after) })
		}
	}
}

// The reply to the call that renames or retires may be lost. The call is repeated,
// and a repetition is no error.
func TestALostReplyOfARegistryEdit(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		for _, name := range []string{"billing", "mailing"} {
			if _, err := b.store.Register(t.Context(), store.Consumer{Name: name, Source: "memory queue " + name}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(inbox.RetireSilence)
		s := &forgetful{Store: b.store, lose: 1}
		if _, err := (inbox.Admin{Store: s}).Rename(t.Context(), "billing", "invoicing", ann); err != nil {
			t.Error(err)
		}
		s.lose = 1
		if _, err := (inbox.Admin{Store: s}).Retire(t.Context(), "mailing", false, ann); err != nil {
			t.Error(err)
		}
		all, err := b.store.Consumers(t.Context())
		if err != nil || len(all) != 2 || all[0].Name != "invoicing" || !store.IsRetired(all, "mailing") {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// forgetful is a store whose replies to edits are lost.
type forgetful struct {
	*memstore.Store
	lose int
}

func (s *forgetful) reply(err error) error {
	if s.lose--; s.lose >= 0 {
		return errors.Join(err, once.ErrOutcomeUnknown)
	}
	return err
}

func (s *forgetful) RenameConsumer(ctx context.Context, from, to string) error {
	return s.reply(s.Store.RenameConsumer(ctx, from, to))
}

func (s *forgetful) RetireConsumer(ctx context.Context, r store.Retirement) error {
	return s.reply(s.Store.RetireConsumer(ctx, r))
}

// pausedMoves is paused, and commits nothing either.
type pausedMoves struct{ *paused }

func (s pausedMoves) TransactAt(ctx context.Context, from, to store.Position, do func(*memstore.Tx) error) error {
	if s.still.Load() {
		return errors.New("the process is paused")
	}
	return s.Store.TransactAt(ctx, from, to, do)
}

// A process was paused for so long that its consumer could be retired, with its first
// message of a partition in hand: the position is open and has no log. (With one
// message handled before, it ends with ErrLogChanged.) It must handle nothing more.
func TestAPausedProcessOfARetiredConsumerDoesNotBeginAPartition(t *testing.T) {
	for _, had := range []bool{true, false} {
		onLongBench(t, func(t *testing.T, b *bench) {
			s := pausedMoves{&paused{Store: b.store}}
			c := &inbox.Consumer{Name: "billing", Source: b.broker.Log("orders", "billing", 1), Checkpoint: true,
				Handler: inbox.Tx(s, b.effect), Stats: new(inbox.Stats)}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			await(t, "registered", func() bool { return b.isRegistered("billing") })
			if had {
				b.publish("orders", message("m0"))
				await(t, "handled", func() bool { return b.count("m0") == 1 })
			}
			s.still.Store(true)
			b.publish("orders", message("m1"))
			time.Sleep(2*inbox.RetireSilence + time.Second)
			change, err := b.admin().Retire(t.Context(), "billing", false, ann)
			if err != nil {
				t.Fatal(err)
			}
			s.still.Store(false)
			time.Sleep(5 * time.Minute)
			if n := b.count("m1"); n != 0 {
				t.Errorf("had a message before: %v, positions %+v: m1 has %d effects, by a consumer that was retired before", had, change.Positions, n)
			}
			cancel()
			if err := <-ended; !errors.Is(err, inbox.ErrLogChanged) {
				t.Errorf("Run returned %v, want ErrLogChanged", err)
			}
		})
	}
}
