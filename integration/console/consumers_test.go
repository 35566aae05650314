//go:build linux

package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/store"
)

// consumer registers a consumer with a position and parked messages.
func (s *shop) consumer(called string, parked int) {
	s.t.Helper()
	registry, ok := once.As[store.Registry](s.store)
	of, shelved := once.As[inbox.AdminStore](s.store)
	if !ok || !shelved {
		s.t.Fatal("the store has no registry, or no shelf")
	}
	_, err := registry.Register(s.t.Context(), store.Consumer{Name: called, Source: "kafka topic orders group " + called})
	proof.Must(s.t, err)
	proof.Must(s.t, of.SetPosition(s.t.Context(), store.Position{Consumer: called, Partition: "orders/0", Log: "kafka orders", Offset: 41}))
	for i := range parked {
		id := fmt.Sprint("m-order-", i)
		proof.Must(s.t, of.Shelve(s.t.Context(), []store.Shelved{{Consumer: called, Key: id, Message: broker.Message{ID: id, Topic: "orders",
			Body: []byte("{}")}, State: store.Parked, Attempts: 10, Reason: "no such customer"}}))
	}
}

// anHourLater makes all consumers silent for an hour.
func (s *shop) anHourLater() {
	s.t.Helper()
	const earlier = "UPDATE once_consumer SET seen = seen - 3600000000"
	var err error
	if s.pool.PGX != nil {
		_, err = s.pool.PGX.Exec(s.t.Context(), earlier)
	} else {
		_, err = s.pool.SQL.ExecContext(context.WithoutCancel(s.t.Context()), earlier)
	}
	proof.Must(s.t, err)
}

func (s *shop) consumers() (text string) {
	s.t.Helper()
	registry, _ := once.As[store.Registry](s.store)
	all, err := registry.Consumers(s.t.Context())
	proof.Must(s.t, err)
	for _, c := range all {
		state := "at work"
		if store.IsRetired(all, c.Name) {
			state = "retired"
		}
		text += fmt.Sprintf("%s of %s %s; ", c.Name, c.Keys, state)
	}
	return text
}

func (b *tab) openConsumer(called string) {
	b.t.Helper()
	b.visit("/consumers")
	b.follow(fmt.Sprintf("main tbody a.row[href$='name=%s&store=shop']", called))
	b.sees("Consumer "+called, "orders/0", "41", "this store does not know")
}

// askToChange fills in one of the two forms, and reads what will change.
func (b *tab) askToChange(form, field, text, reason string) int {
	b.t.Helper()
	b.click("#" + form + " ~ details summary")
	if field != "" {
		b.fill(field, text)
	}
	b.fill("#"+form+"-reason", reason)
	if text == "discard" {
		b.click("input[name=discard]")
	}
	return b.follow("#" + form + " ~ details button")
}

// A consumer gets another name, and is retired when its time has come, with and
// without scripts.
func TestRenameAndRetireAConsumer(t *testing.T) {
	axe, err := server.Axe(t.Context())
	proof.Must(t, err)
	onEach(t, func(t *testing.T, s *shop) {
		for i, scripts := range []bool{true, false} {
			old, renamed := fmt.Sprint("billing-", i), fmt.Sprint("invoicing-", i)
			s.consumer(old, 2)
			b := s.open(chief)
			if !scripts {
				b.withoutScripts()
			}
			b.openConsumer(old)
			if status := b.askToChange("rename", "#to", renamed, "ticket 88"); status != http.StatusOK {
				t.Fatalf("the confirmation has the status %d: %s", status, b.text())
			}
			b.sees("Rename this consumer?", old, renamed, "1 position, 2 messages", "It is at work now", "ticket 88")
			for _, l := range looks {
				if scripts && s.pool.PGX == nil { // the pages are the same
					b.looksAt(l)
					b.fits()
					b.picture("consumer-rename-" + l.String())
					b.accessible(axe)
				}
			}
			b.follow("main form button.main")
			b.sees("Consumer "+renamed, "You have renamed consumer "+old+" to "+renamed)
			b.openConsumer(renamed)
			if status := b.askToChange("retire", "", "", "replaced"); status != http.StatusConflict {
				t.Errorf("one at work: %d", status)
			}
			b.sees("is at work")
			s.anHourLater()
			b.openConsumer(renamed)
			b.askToChange("retire", "", "", "replaced")
			b.sees("messages on the shelf that were not handled")
			for _, l := range looks {
				if scripts && s.pool.PGX == nil { // the pages are the same
					b.looksAt(l)
					b.fits()
					b.picture("consumer-refused-" + l.String())
					b.accessible(axe)
				}
			}
			b.click("input[name=discard]")
			b.follow("#retire ~ details button")
			b.sees("Retire this consumer?", renamed, "orders/0 at 41 of kafka orders", "2 messages that were not handled", "replaced")
			b.picture("consumer-retire")
			b.follow("main form button.danger")
			b.sees("You have retired consumer "+renamed, "by chief: replaced", "It is retired")
			b.picture("consumer-retired")
			b.visit("/audit")
			b.sees("chief", "renamed consumer "+old+" to "+renamed, "ticket 88", "retired consumer "+renamed)
		}
		want := "invoicing-0 of billing-0 retired; invoicing-1 of billing-1 retired; "
		if got := s.consumers(); got != want {
			t.Errorf("the consumers are %q, want %q", got, want)
		}
		if !strings.Contains(s.log.String(), "discarded=2") {
			t.Errorf("logged %s", s.log)
		}
	})
}

// Two people have one consumer in front of them. The second learns that it has
// changed, and changes nothing.
func TestTwoPeopleChangeOneConsumer(t *testing.T) {
	onEach(t, func(t *testing.T, s *shop) {
		s.consumer("billing", 1)
		s.anHourLater()
		first, second := s.open(chief), s.open(chief)
		first.openConsumer("billing")
		first.askToChange("rename", "#to", "invoicing", "a new name")
		second.openConsumer("billing")
		if status := second.askToChange("retire", "", "discard", "replaced"); status != http.StatusOK {
			t.Fatalf("the confirmation has the status %d: %s", status, second.text())
		}
		first.follow("main form button.main")
		if status := second.follow("main form button.danger"); status != http.StatusNotFound {
			t.Errorf("the second change has the status %d: %s", status, second.text())
		}
		second.sees("Nothing was changed")
		if got := s.consumers(); got != "invoicing of billing at work; " {
			t.Error(got)
		}
		shelf, _ := once.As[store.Shelf](s.store)
		if found, err := shelf.Shelved(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Parked}}); err != nil || len(found) != 1 {
			t.Errorf("parked are %+v, %v", found, err)
		}
	})
}
