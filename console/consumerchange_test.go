package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// silent is a store whose consumers have been silent for an hour. fail, if it is
// set, is called before a consumer is retired.
type silent struct {
	*memstore.Store
	fail func() error
}

func (s *silent) Consumers(ctx context.Context) ([]store.Consumer, error) {
	all, err := s.Store.Consumers(ctx)
	for i := range all {
		all[i].Seen += time.Hour
	}
	return all, err
}

func (s *silent) RetireConsumer(ctx context.Context, r store.Retirement) error {
	if s.fail != nil {
		if err := s.fail(); err != nil {
			return err
		}
	}
	r.Silence = 0
	return s.Store.RetireConsumer(ctx, r)
}

// mailing registers the consumers mailing, with two positions and three parked
// messages, and notifying.
func mailing(t *testing.T, s *memstore.Store) {
	t.Helper()
	for _, name := range []string{"mailing", "notifying"} {
		if _, err := s.Register(t.Context(), store.Consumer{Name: name, Source: "queue " + name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, partition := range []string{"p0", "p1"} {
		if err := s.SetPosition(t.Context(), store.Position{Consumer: "mailing", Partition: partition, Log: "log-1", Offset: 41}); err != nil {
			t.Fatal(err)
		}
	}
	shelve(t, s, parked("mailing", 3)...)
}

const mailingPage = "/consumers/one?store=shop&name=mailing"

func registered(t *testing.T, s store.Registry) (text string) {
	t.Helper()
	all, err := s.Consumers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		text += c.Name + " " + c.Source + " " + c.Keys + "; "
	}
	return text
}

func TestAConsumerIsRenamed(t *testing.T) {
	s, log := memstore.New(nil), new(logtest.Log)
	mailing(t, s)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true, Log: slog.New(slog.NewTextHandler(log, nil))})
	b := as(t, c, adminToken)
	b.get(mailingPage).is(http.StatusOK)
	b.fill("/consumers/confirm", "to", " ", "reason", "x").is(http.StatusUnprocessableEntity).shows("Give the new name")
	b.fill("/consumers/confirm", "to", "posting", "reason", " ").is(http.StatusUnprocessableEntity).shows("Give a reason")
	b.fill("/consumers/confirm", "to", "posting", "reason", strings.Repeat("x", longestReason+1)).is(http.StatusUnprocessableEntity).shows("only 400 are stored")
	b.fill("/consumers/confirm", "to", "notifying", "reason", "x").is(http.StatusConflict).shows("Nothing was changed", "registered already")
	b.fill("/consumers/confirm", "to", "a/b", "reason", "x").is(http.StatusConflict).shows("a slash")
	b.fill("/consumers/confirm", "to", "po\u200bsting", "reason", "ticket 88").is(http.StatusOK).shows(`"po\u200bsting"`)
	b.get(mailingPage)
	b.fill("/consumers/confirm", "to", "posting", "reason", "ticket 88").is(http.StatusOK)
	b.shows("Rename this consumer?", "shop", "mailing", "queue mailing", "posting", "2 positions", "3 messages on the shelf", "It is at work now", "ticket 88")
	if got := registered(t, s); got != "mailing queue mailing mailing; notifying queue notifying notifying; " {
		t.Fatal("asking has changed it:", got)
	}
	b.fill("/consumers/change").is(http.StatusOK).shows("Consumer posting", "You have renamed consumer mailing to posting", "41", "parked 3")
	if got := registered(t, s); got != "notifying queue notifying notifying; posting queue mailing mailing; " {
		t.Error(got)
	}
	b.get("/audit").shows("ada", "renamed consumer mailing to posting", "ticket 88")
	if !strings.Contains(log.String(), `deed="renamed consumer mailing to posting" by=ada`) || !strings.Contains(log.String(), "keys=mailing") {
		t.Errorf("logged %s", log)
	}
}

func TestAConsumerIsRetired(t *testing.T) {
	s := &silent{Store: memstore.New(nil)}
	mailing(t, s.Store)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true})
	b := as(t, c, adminToken)
	b.get(mailingPage)
	b.fill("/consumers/confirm#retire", "reason", "replaced").is(http.StatusConflict).shows("messages on the shelf that were not handled")
	b.fill("/consumers/confirm#retire", "reason", "replaced", "discard", "yes").is(http.StatusOK)
	b.shows("Retire this consumer?", "mailing", "queue mailing", "2 positions: p0 at 41 of log-1 p1 at 41 of log-1", "3 messages that were not handled", "0 waiting, 3 parked", "replaced")
	if n, _ := s.Shelved(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Parked}}); len(n) != 3 {
		t.Fatal("asking has discarded messages")
	}
	b.fill("/consumers/change").is(http.StatusOK).shows("You have retired consumer mailing", "retired", "by ada: replaced", "Nothing is parked or waits", "It is retired", "(retired)")
	if b.form("/consumers/confirm") != nil {
		t.Error("a retired consumer can be changed")
	}
	b.get("/audit").shows("retired consumer mailing", "replaced")
	b.get("/consumers?store=shop").shows("by ada: replaced")
	if all, _ := s.Consumers(t.Context()); !store.IsRetired(all, "mailing") || store.IsRetired(all, "notifying") {
		t.Errorf("%+v", all)
	}
}

// One at work is not retired, and nothing of it is discarded.
func TestAConsumerAtWorkIsNotRetired(t *testing.T) {
	s := memstore.New(nil)
	mailing(t, s)
	b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true}), adminToken)
	b.get(mailingPage).fill("/consumers/confirm#retire", "reason", "x", "discard", "yes").is(http.StatusConflict).shows("is at work")
	if n, _ := s.Shelved(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Parked}}); len(n) != 3 {
		t.Error("its messages were discarded")
	}
}

// What was confirmed is done, or nothing: another person, or the consumer itself, may
// have changed it meanwhile.
func TestAConsumerThatHasChangedIsLeftAlone(t *testing.T) {
	for name, meanwhile := range map[string]func(s *silent, other *browser){
		"another message is parked": func(s *silent, other *browser) {
			shelve(other.t, s.Store, parked("mailing", 4)[3])
		},
		"a position has moved": func(s *silent, other *browser) {
			_ = s.SetPosition(other.t.Context(), store.Position{Consumer: "mailing", Partition: "p0", Log: "log-1", Offset: 42})
		},
		"it is at another source, too": func(s *silent, other *browser) {
			_, _ = s.Register(other.t.Context(), store.Consumer{Name: "mailing", Source: "queue 2", SharedWith: "queue mailing"})
		},
		"another person renames it": func(_ *silent, other *browser) {
			other.get(mailingPage).fill("/consumers/confirm", "to", "posting", "reason", "first").fill("/consumers/change").is(http.StatusOK)
		},
		"another person retires it": func(_ *silent, other *browser) {
			other.get(mailingPage).fill("/consumers/confirm#retire", "reason", "first", "discard", "yes").fill("/consumers/change").is(http.StatusOK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &silent{Store: memstore.New(nil)}
			mailing(t, s.Store)
			c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true})
			b, other := as(t, c, adminToken), as(t, c, adminToken)
			b.get(mailingPage).fill("/consumers/confirm#retire", "reason", "second", "discard", "yes").is(http.StatusOK)
			meanwhile(s, other)
			before := registered(t, s)
			b.fill("/consumers/change")
			if b.status != http.StatusConflict && b.status != http.StatusNotFound {
				t.Errorf("the status is %d", b.status)
			}
			b.shows("Nothing was changed")
			if after := registered(t, s); after != before {
				t.Errorf("%q has become %q", before, after)
			}
			b.get("/audit").hides("second")
		})
	}
}

// If the store fails after messages were discarded, the audit says so, and the same
// change does the rest.
func TestAHalfRetiredConsumer(t *testing.T) {
	s := &silent{Store: memstore.New(nil)}
	mailing(t, s.Store)
	b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true}), adminToken)
	s.fail = func() error { return errors.New("dial tcp: refused") }
	b.get(mailingPage).fill("/consumers/confirm#retire", "reason", "replaced", "discard", "yes").fill("/consumers/change")
	b.is(http.StatusServiceUnavailable).shows("It is half done", "3 messages were discarded")
	b.get("/audit").shows("discarded 3 messages of consumer mailing, which was to be retired")
	b.get(mailingPage).fill("/consumers/confirm#retire", "reason", "replaced").fill("/consumers/change")
	b.is(http.StatusServiceUnavailable).shows("It is not known whether this was done")
	b.get("/audit").shows("tried: retired consumer mailing")
	s.fail = nil
	b.get(mailingPage).fill("/consumers/confirm#retire", "reason", "replaced").fill("/consumers/change").is(http.StatusOK).shows("You have retired consumer mailing")
}

func TestTooManyMessagesToGiveUp(t *testing.T) {
	s := &silent{Store: memstore.New(nil)}
	mailing(t, s.Store)
	shelve(t, s.Store, parked("mailing", maxDiscarded)[3:]...)
	b := as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true}), adminToken)
	b.get(mailingPage).fill("/consumers/confirm#retire", "reason", "replaced", "discard", "yes").is(http.StatusConflict).shows("1,000 messages or more", "as a job")
}

func TestWhoMayChangeAConsumer(t *testing.T) {
	s := memstore.New(nil)
	mailing(t, s)
	if _, err := s.Register(t.Context(), store.Consumer{Name: "mailing@2", Source: "queue mailing"}); err != nil {
		t.Fatal(err)
	}
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true})
	as(t, c, decideToken).get(mailingPage).shows("you need the role administer").hides("/consumers/confirm")
	as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: s}}}), adminToken).get(mailingPage).shows("The console is read-only").hides("/consumers/confirm")
	bare := struct {
		inbox.AdminStore
		store.Registry
	}{s, s}
	as(t, open(t, Options{Stores: []Store{{Name: "shop", Store: bare}}, Write: true}), adminToken).get(mailingPage).
		shows("This store cannot change its consumers").hides("/consumers/confirm")
	b := as(t, c, adminToken).get(mailingPage + "%402").shows("is renamed with its consumer")
	if b.form("/consumers/confirm#rename") != nil || b.form("/consumers/confirm#retire") == nil {
		t.Error("a rebuild can be renamed by itself")
	}
}
