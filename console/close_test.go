//go:build go1.25

package console

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

// going is a store that is well at first, and then answers nothing until the end.
type going struct {
	*memstore.Store
	gone atomic.Bool
	end  chan struct{}
}

func (s *going) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if s.gone.Load() {
		<-s.end
	}
	return s.Store.Get(ctx, k)
}

func (s *going) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if s.gone.Load() {
		<-s.end
	}
	return s.Store.List(ctx, q)
}

// What a program gives to the console may ignore its context, and hang for ever. Close
// gives it up, says so in the log, and what is still under way changes nothing.
func TestCloseGivesUpWhatNeverAnswers(t *testing.T) {
	begin := map[string]func(t *testing.T, c *Console, b *browser){
		"console: a comparison failed": func(t *testing.T, c *Console, b *browser) {
			b.send("charges.csv", "id\n1\n", "operation", "pay", "store", "deaf").is(http.StatusOK)
		},
		"console: a question was given up": func(t *testing.T, c *Console, b *browser) {
			b.ask(charge("1")).is(http.StatusOK).shows("0 of 1 asked about")
		},
		"console: a store cannot be examined": func(t *testing.T, c *Console, b *browser) {
			b.get("/") // somebody looks
			time.Sleep(lookEvery + time.Second)
		},
	}
	for said, start := range begin {
		faketime.Long(t, func(t *testing.T) {
			end := make(chan struct{})
			shop, going, log := memstore.New(nil), &going{Store: memstore.New(nil), end: end}, new(logtest.Log)
			unknown(t, shop, charge("1"))
			lookup := func(context.Context, once.Key) (string, bool, error) {
				<-end
				return "late", true, nil
			}
			doctor := func(context.Context) ([]Finding, error) {
				<-end
				return []Finding{{Name: "late", Severity: Unsafe}}, nil
			}
			c := open(t, Options{Log: slog.New(slog.NewTextHandler(log, nil)), Stores: []Store{
				{Name: "shop", Store: shop, Doctor: doctor, Ask: []reconcile.Operation{reconcile.Of(&once.Operation[string]{Name: "charge", Lookup: lookup})}},
				{Name: "deaf", Store: going}}})
			b := as(t, c, decideToken)
			going.gone.Store(said == "console: a comparison failed") // or the samples hang too
			start(t, c, b)
			synctest.Wait()
			begun := time.Now()
			c.Close()
			if took := time.Since(begun); took < stopTime-time.Second || took > stopTime+time.Second {
				t.Errorf("%s: Close took %v", said, took)
			}
			if got := log.String(); !strings.Contains(got, said) || !strings.Contains(got, "it was given up") {
				t.Errorf("logged %s, not %s", got, said)
			}
			close(end)
			synctest.Wait()
			for _, x := range c.comparisons.latest() {
				if x.state != jobFailed || !strings.Contains(x.trouble, "given up") || x.summary.Known > 0 || x.read > 0 {
					t.Errorf("the comparison is %s: %s, %+v", x.state, x.trouble, x.summary)
				}
			}
			for _, q := range c.inquiries.latest() {
				if q.isWorking() || q.replies[0].asked {
					t.Errorf("an answer that came after the end counts: %+v", q.replies[0])
				}
			}
			if of := c.checkups.of("shop"); len(of.Findings) > 0 {
				t.Errorf("the doctor found %v after the end", of.Findings)
			}
		})
	}
}

// What was given up is not begun again until it has ended: an examination, and a
// question of an operation that may have only one at once.
func TestWhatWasGivenUpKeepsItsPlace(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		end := make(chan struct{})
		var asked, examined atomic.Int64
		shop := memstore.New(nil)
		unknown(t, shop, charge("1"))
		unknown(t, shop, charge("2"))
		op := reconcile.Of(&once.Operation[string]{Name: "charge", Lookup: func(context.Context, once.Key) (string, bool, error) {
			asked.Add(1)
			<-end
			return "", false, nil
		}})
		op.AtOnce = 1
		c := open(t, Options{IdleTime: 11 * time.Hour, Stores: []Store{{Name: "shop", Store: shop, Ask: []reconcile.Operation{op}, Doctor: func(context.Context) ([]Finding, error) {
			examined.Add(1)
			<-end
			return nil, nil
		}}}})
		b := as(t, c, decideToken)
		b.ask(charge("1")).asked(c).shows("given up")
		b.ask(charge("2"))
		time.Sleep(time.Hour) // of fake time
		if asked.Load() != 1 {
			t.Errorf("%d questions are under way", asked.Load())
		}
		b.get("/")
		time.Sleep(checkEvery)
		b.get("/").shows("given up")
		time.Sleep(2 * checkEvery)
		b.get("/")
		time.Sleep(2 * lookEvery)
		if examined.Load() != 1 {
			t.Errorf("%d examinations are under way", examined.Load())
		}
		close(end)
		synctest.Wait()
		time.Sleep(2 * checkEvery)
		b.get("/")
		time.Sleep(2 * lookEvery)
		if asked.Load() != 2 || examined.Load() < 2 {
			t.Errorf("%d questions, %d examinations after the first ended", asked.Load(), examined.Load())
		}
	})
}

// A comparison that was given up still has its report in memory, so it keeps its place
// until its store returns.
func TestAComparisonThatWasGivenUpKeepsItsPlace(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		deaf := &going{Store: memstore.New(nil), end: make(chan struct{})}
		c := open(t, Options{IdleTime: 11 * time.Hour, Stores: []Store{{Name: "deaf", Store: deaf}}})
		b := as(t, c, decideToken)
		deaf.gone.Store(true)
		for range maxComparing {
			b.send("charges.csv", "id\n1\n", "operation", "pay", "store", "deaf").is(http.StatusOK)
			synctest.Wait() // it is at the store
			c.comparisons.latest()[0].end("dee")
			time.Sleep(stopTime + time.Second)
			if x := c.comparisons.latest()[0]; x.isWorking() {
				t.Fatal("it was not given up")
			}
		}
		b.send("charges.csv", "id\n1\n", "operation", "pay", "store", "deaf").is(http.StatusServiceUnavailable)
		close(deaf.end)
		synctest.Wait()
		b.send("charges.csv", "id\n1\n", "operation", "pay", "store", "deaf").is(http.StatusOK)
	})
}

// However many people look, and however often, a store that never answers has a
// bounded number of requests. Afterwards its pages are there again.
func TestADeafStoreHasABoundedNumberOfRequests(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		deaf := &going{Store: memstore.New(nil), end: make(chan struct{})}
		c := open(t, Options{IdleTime: 11 * time.Hour, Stores: []Store{{Name: "deaf", Store: deaf}, {Name: "well", Store: memstore.New(nil)}}})
		b := as(t, c, decideToken)
		deaf.gone.Store(true)
		before := runtime.NumGoroutine()
		for range 2 * callsAtOnce {
			b.get("/unknown").is(http.StatusOK).shows("The store deaf does not answer")
		}
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > callsAtOnce+10 {
			t.Errorf("%d goroutines more", more)
		}
		if n := len(c.calls["deaf"]); n != callsAtOnce {
			t.Errorf("%d requests are under way, want %d", n, callsAtOnce)
		}
		if n := len(c.calls["well"]); n != 0 {
			t.Errorf("the other store has %d", n)
		}
		deaf.gone.Store(false)
		close(deaf.end)
		synctest.Wait()
		if b.get("/unknown").is(http.StatusOK).hides("does not answer"); len(c.calls["deaf"]) != 0 {
			t.Error("places are not given back")
		}
		b.get("/")
		time.Sleep(2 * lookEvery)
		b.get("/").is(http.StatusOK).hides("does not answer", "has not answered")
		b.send("charges.csv", "id\n1\n", "operation", "pay", "store", "deaf").is(http.StatusOK)
	})
}
