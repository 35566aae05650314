package crosscheck_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/store/memstore"
)

func TestDecisionsAreThoseThatAreAskedFor(t *testing.T) {
	unknown, parked := once.Record{Status: once.Unknown}, once.Record{Status: once.Parked}
	happened := crosscheck.Finding{Kind: crosscheck.OpenHere, Record: unknown, Supports: crosscheck.MarkDone, Lines: []int{7, 9}, Line: []byte("{}")}
	missing := crosscheck.Finding{Kind: crosscheck.OpenNotThere, Record: unknown, Supports: crosscheck.MarkNotDone}
	aside := happened
	aside.Record = parked
	pending := crosscheck.Finding{Kind: crosscheck.OpenNotThere, Record: unknown, Lines: []int{3}}
	for _, test := range []struct {
		with crosscheck.Settling
		want string // of happened, missing, aside and pending
	}{
		{crosscheck.Settling{}, "- - - -"},
		{crosscheck.Settling{Parked: true}, "- - - -"},
		{crosscheck.Settling{Happened: true}, "done - - -"},
		{crosscheck.Settling{Happened: true, Parked: true}, "done - done -"},
		{crosscheck.Settling{Missing: true}, "- free - -"},
		{crosscheck.Settling{Happened: true, Missing: true, Parked: true}, "done free done -"},
	} {
		var all []string
		for _, f := range []crosscheck.Finding{happened, missing, aside, pending} {
			p, ok, err := test.with.Plan(f)
			becomes := "-"
			if ok {
				_, becomes = p.Verb()
			}
			if err != nil || ok && p.Outcome != nil && !p.Outcome.Omitted {
				t.Errorf("%+v: %+v, %v", test.with, p, err)
			}
			all = append(all, becomes)
		}
		if got := strings.Join(all, " "); got != test.want {
			t.Errorf("%+v: %s, want %s", test.with, got, test.want)
		}
	}
	with := crosscheck.Settling{Happened: true, LineAsOutcome: true, MaxOutcome: 2}
	if p, ok, err := with.Plan(happened); !ok || err != nil || string(p.Outcome.Body) != "{}" || p.Where() != "line 7 of the report" {
		t.Errorf("%+v, %v", p, err)
	}
	with.MaxOutcome = 1
	if _, ok, err := with.Plan(happened); ok || !errors.Is(err, once.ErrOutcomeTooLarge) {
		t.Error(err)
	}
}

func TestDecisionSaysWhoMadeItAndWhy(t *testing.T) {
	s := memstore.New(nil)
	put(t, s, once.Key{Operation: "pay", ID: "1"}, record{status: once.Unknown})
	put(t, s, once.Key{Operation: "pay", ID: "2"}, record{status: once.Unknown})
	report := read(t, crosscheck.Format{}, "id\n1\n")
	found, _ := run(t, crosscheck.Comparison{Store: s, Report: report, Since: time.Unix(0, 0), Until: time.Now().Add(time.Hour)})
	for i, want := range []string{"released by ana: ticket 88 (not in the report)", "completed by ana: ticket 88 (line 2 of the report)"} {
		p, ok, err := crosscheck.Settling{Happened: true, Missing: true}.Plan(found[i])
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := p.Settle(t.Context(), s, "ana", " ticket 88 "); err != nil {
			t.Fatal(err)
		}
		if rec, err := s.Get(t.Context(), p.Record.Key); err != nil || rec.Reason != want {
			t.Errorf("%q, %v, want %q", rec.Reason, err, want)
		}
		p.Record.Attempt++
		if err := p.Settle(t.Context(), s, "ana", "x"); !errors.Is(err, once.ErrLeaseLost) {
			t.Error(err)
		}
	}
}

// A panic of a store can be recovered, although goroutines read.
func TestPanicOfAStoreReachesTheCaller(t *testing.T) {
	defer func() {
		if cause := recover(); cause == nil || !strings.Contains(cause.(string), "boom") {
			t.Errorf("recovered %v", cause)
		}
	}()
	c := crosscheck.Comparison{Store: panicking{memstore.New(nil)}, Report: read(t, crosscheck.Format{}, "id\n1\n2\n")}
	_, err := c.Run(t.Context(), func(crosscheck.Finding) error { return nil })
	t.Errorf("it returned %v", err)
}

// panicking panics when it reads.
type panicking struct{ *memstore.Store }

func (panicking) Get(context.Context, once.Key) (once.Record, error) { panic("boom") }

// Unwrap returns the store.
func (s panicking) Unwrap() once.Store { return s.Store }
