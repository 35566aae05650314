//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/asking"
)

// A service is asked by hand no faster than by once serve.
func TestAskingKeepsToThePace(t *testing.T) {
	_, shop := shopFile(t)
	charge := &once.Operation[int]{Name: "charge", Lookup: func(context.Context, once.Key) (int, bool, error) {
		return 0, false, errors.New("once serve asks")
	}}
	var recs []once.Record
	for i := range 3 {
		work := charge.For(fmt.Sprint(i))
		_, err := once.Do(t.Context(), shop.Store, work, func(context.Context, once.Key) (int, error) {
			return 0, errors.New("the connection broke")
		})
		if !errors.Is(err, once.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		recs = append(recs, once.Record{Key: work.Key()})
	}
	ask := func(op asking.Operation, answer http.HandlerFunc) time.Duration {
		server := httptest.NewServer(answer)
		defer server.Close()
		by := asking.New(asking.Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, AllowHTTP: true})
		defer by.Close()
		var err error
		if op.Endpoint, err = by.Endpoint(server.URL, []string{hookSecret}); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for i, found := range askAll(t.Context(), &session{Target: shop}, nil, map[string]asking.Operation{"charge": op}, recs) {
			if found.Record.Key != recs[i].Key || found.Record.Attempt != 1 || found.Why == "" {
				t.Errorf("about %v it is found that %+v", recs[i].Key, found)
			}
		}
		return time.Since(begun)
	}

	var at, limit atomic.Int64
	another := make(chan struct{}, len(recs))
	ask(asking.Operation{Name: "charge", AtOnce: 1}, func(w http.ResponseWriter, _ *http.Request) {
		now := at.Add(1)
		defer at.Add(-1)
		if now > 1 {
			limit.Store(now)
			another <- struct{}{}
		}
		select {
		case <-another:
		case <-time.After(100 * time.Millisecond): // as long as one would take that does not wait
		}
		http.Error(w, "later", http.StatusServiceUnavailable)
	})
	if n := limit.Load(); n > 0 {
		t.Errorf("%d questions were on their way", n)
	}

	took := ask(asking.Operation{Name: "charge", PerSecond: 5}, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "later", http.StatusServiceUnavailable)
	})
	if least := 400 * time.Millisecond; took < least {
		t.Errorf("three questions were put in %v, want %v at least", took, least)
	}
}

// A yes is about keys by their names, as long as they fit on a screen.
func TestKeysAreNamedBeforeTheYes(t *testing.T) {
	all := make([]asked, maxNamed+3)
	for i := range all {
		all[i].Record.Key = once.Key{Operation: "charge", ID: fmt.Sprint(i)}
		all[i].Settlement.Status = once.Absent
	}
	all[0].Settlement.Status = once.Unknown
	text := named(all, maxNamed+2)
	if strings.Contains(text, `"0"`) || !strings.Contains(text, `"1" of charge becomes free`) ||
		!strings.HasSuffix(text, `"20" of charge becomes free`+"\n  and 2 more; run without --apply to see all") {
		t.Error(text)
	}
}
