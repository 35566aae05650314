//go:build go1.25

package inbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store/memstore"
)

// A process joins the outage that others have reported, and not one that they have
// found to be over since it started.
func TestAnOutageIsJoinedWhileItLasts(t *testing.T) {
	for _, c := range []struct {
		name  string
		ends  func(first, second *outages, it *item) // after 50 minutes
		joins bool
	}{
		{"it lasts", func(_, _ *outages, _ *item) {}, true},
		{"its process got through", func(first, _ *outages, it *item) { first.passed(t.Context(), it) }, false},
		{"another one got through", func(_, second *outages, it *item) { second.passed(t.Context(), it) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New(nil)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				process := func() *outages {
					e := outageEnv(t, st)
					go e.reportOutages(ctx)
					return e.outages
				}
				it := itemOfTopic("orders")
				down := errors.New("connection refused")
				fail := func(o *outages) { o.failed(ctx, it, Unavailable(down)) }

				first := process()
				fail(first)
				synctest.Wait() // it is reported
				second := process()
				for range 50 * 6 {
					time.Sleep(10 * time.Second)
					first.admit(it.Message.Topic)
					fail(first)
				}
				c.ends(first, second, it)
				synctest.Wait()
				for range 15 * 6 {
					second.admit(it.Message.Topic)
					fail(second)
					time.Sleep(10 * time.Second)
				}
				if parks, _ := second.mayPark(ctx, it, down, 10); parks != c.joins {
					t.Errorf("parks: %v", parks)
				}
			})
		})
	}
}

// A process that had nothing to try does not know that an outage lasts, and does not
// report it: others have handled the messages that waited for it.
func TestAnOutageDoesNotLastWhileNothingIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		e := outageEnv(t, st)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go e.reportOutages(ctx)
		it := itemOfTopic("orders")
		down := Unavailable(errors.New("connection refused"))
		e.outages.failed(ctx, it, down)
		time.Sleep(2 * time.Hour)
		if all, err := Outages(ctx, st, "billing"); err != nil || len(all) > 0 {
			t.Errorf("reported is %+v, %v", all, err)
		}
		for range 6 {
			e.outages.admit(it.Message.Topic)
			if whose, _ := e.outages.failed(ctx, it, down); whose != nobodys {
				t.Fatal("it is blamed for two hours in which nothing was tried")
			}
			time.Sleep(10 * time.Second)
		}
		if all, err := Outages(ctx, st, "billing"); err != nil || len(all) != 1 || time.Since(all[0].Since) > 2*time.Minute {
			t.Errorf("reported is %+v, %v", all, err)
		}
	})
}

func outageEnv(t *testing.T, st *memstore.Store) *env {
	e, err := newEnv(&Consumer{Name: "billing", Stats: new(Stats), Retry: Retry{Outage: time.Hour}}, st, outside)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func itemOfTopic(topic string) *item {
	return &item{Delivery: broker.Delivery{Message: &broker.Message{ID: "m of " + topic, Topic: topic}}}
}

// What others report is forgotten with their report.
func TestTheMemoryOfReportsIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		first, second := outageEnv(t, st), outageEnv(t, st)
		go first.reportOutages(ctx)
		go second.reportOutages(ctx)
		down := Unavailable(errors.New("connection refused"))
		other := itemOfTopic("other")
		second.outages.failed(ctx, other, down) // it reports each minute
		for i := range 2 * topicsLimit {
			it := itemOfTopic(fmt.Sprint("entity-", i))
			first.outages.failed(ctx, it, down)
			time.Sleep(2 * time.Minute)
			first.outages.passed(ctx, it)
			second.outages.admit("other")
			second.outages.failed(ctx, other, down)
		}
		second.outages.mu.Lock()
		defer second.outages.mu.Unlock()
		if n := len(second.outages.earlier); n > topicsLimit {
			t.Errorf("%d topics are remembered, of which none is down", n)
		}
	})
}

// An outage is reported while the handler of its only message is at work.
func TestALongProbeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		e := outageEnv(t, st)
		go e.reportOutages(ctx)
		down := Unavailable(errors.New("i/o timeout"))
		it := itemOfTopic("orders")
		e.outages.failed(ctx, it, down)
		for range 10 {
			time.Sleep(11 * time.Second)
			if how, _ := e.outages.admit("orders"); how != asProbe {
				t.Fatal(how)
			}
			it.probe = true
			for range 5 { // the handler waits for an answer for five minutes
				time.Sleep(time.Minute)
				if all, err := Outages(ctx, st, "billing"); err != nil || len(all) != 1 {
					t.Errorf("in a probe, reported is %+v, %v", all, err)
					return
				}
			}
			e.outages.failed(ctx, it, down)
		}
	})
}
