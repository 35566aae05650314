package httponce

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

func TestWhichAnswersAreAskedForAgain(t *testing.T) {
	later := map[int]bool{408: true, 425: true, 429: true, 502: true, 503: true, 504: true}
	for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
		for _, status := range []int{200, 204, 304, 400, 401, 404, 408, 409, 410, 413, 422, 425, 429, 500, 501, 502, 503, 504} {
			p := newPeer(t, status)
			req := post(t, t.Context(), p.URL, nil)
			req.Method = method
			want := 1
			if later[status] {
				want = 2
			}
			if resp := send(t, clientOf(&Transport{}), req); Attempts(resp) != want || len(p.all()) != want {
				t.Errorf("%s, %d: %d attempts, want %d", method, status, len(p.all()), want)
			}
			p.Close()
		}
	}
}

func TestAConflictIsAskedAboutAgainWhereTheServerSaysWhen(t *testing.T) {
	for value, want := range map[string]int{"1": 2, "0": 2, "soon": 1, "": 1} {
		p := newPeer(t, 409)
		p.header.Set("Retry-After", value)
		if resp := send(t, clientOf(&Transport{}), post(t, t.Context(), p.URL, nil)); Attempts(resp) != want {
			t.Errorf("Retry-After %q: %d attempts, want %d", value, Attempts(resp), want)
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	now := time.Now().UTC()
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for name, test := range map[string]struct {
		retryAfter, date string
		least            time.Duration
		given            bool // the caller gets the answer at once
	}{
		"seconds":                           {retryAfter: "7", least: 7 * time.Second},
		"zero":                              {retryAfter: "0"},
		"a date, by the server's clock":     {retryAfter: date(-time.Hour + 9*time.Second), date: date(-time.Hour), least: 9 * time.Second},
		"a date that is over":               {retryAfter: date(-time.Minute), date: date(0)},
		"a date, and no clock":              {retryAfter: date(8 * time.Second), date: "noon", least: 6 * time.Second},
		"garbage":                           {retryAfter: "soon"},
		"negative":                          {retryAfter: "-5"},
		"a fraction":                        {retryAfter: "1.5"},
		"longer than the budget":            {retryAfter: "61", given: true},
		"as long as a lease":                {retryAfter: "30", least: 30 * time.Second},
		"a date later than the budget":      {retryAfter: date(time.Hour), date: date(0), given: true},
		"seconds that are no time.Duration": {retryAfter: "9223372037", given: true},
		"more seconds than can be counted":  {retryAfter: strings.Repeat("9", 30), given: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, pauses := newPeer(t, 503), &pauses{}
			p.header.Set("Retry-After", test.retryAfter)
			if test.date != "" {
				p.header.Set("Date", test.date)
			}
			resp := send(t, pauses.of(&Transport{}), post(t, t.Context(), p.URL, nil))
			switch {
			case test.given:
				if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != test.retryAfter || len(p.all()) != 1 {
					t.Errorf("%s after %d attempts", resp.Status, len(p.all()))
				}
			case len(pauses.all) != 1 || pauses.all[0] < test.least || pauses.all[0] > test.least+2*time.Second+firstPause:
				t.Errorf("pauses %v, want one of %v", pauses.all, test.least)
			}
		})
	}
}

func TestPausesGrowAndDiffer(t *testing.T) {
	for attempt, limit := range map[int]time.Duration{1: 500 * time.Millisecond, 2: time.Second, 4: 4 * time.Second, 6: 10 * time.Second, 1000: 10 * time.Second} {
		var longest time.Duration
		shortest := limit
		for range 1000 {
			d := jitter(attempt)
			shortest, longest = min(shortest, d), max(longest, d)
		}
		if shortest < 0 || shortest > limit/10 || longest >= limit || longest < limit*9/10 {
			t.Errorf("after attempt %d: %v to %v, want 0 to %v", attempt, shortest, longest, limit)
		}
	}
}

func TestRetriesAreCounted(t *testing.T) {
	for retries, want := range map[int]int{0: 5, 1: 2, Never: 1} {
		for name, body := range map[string]io.Reader{"a body to read ahead": plain{strings.NewReader("pay")}, "none": nil} {
			p := newPeer(t, 503, 503, 503, 503, 503, 503)
			resp := send(t, clientOf(&Transport{Retries: retries}), post(t, t.Context(), p.URL, body))
			if Attempts(resp) != want || resp.StatusCode != 503 {
				t.Errorf("Retries %d, %s: %d attempts, want %d", retries, name, Attempts(resp), want)
			}
			if got := p.all()[0].length; body != nil && (got == 3) == (retries == Never) {
				t.Errorf("Retries %d: the body was read ahead, or not: length %d", retries, got)
			}
		}
	}
}

func TestNoAttemptBeginsAfterTheBudget(t *testing.T) {
	for budget, want := range map[time.Duration]int{25 * time.Second: 3, 15 * time.Second: 2, 5 * time.Second: 1} {
		pauses := &pauses{}
		p := newPeer(t, 503, 503, 503, 503, 503)
		p.header.Set("Retry-After", "10")
		resp := send(t, pauses.of(&Transport{Budget: budget}), post(t, t.Context(), p.URL, nil))
		if resp.StatusCode != 503 || Attempts(resp) != want {
			t.Errorf("%s after %d attempts, want %d, and pauses of %v", resp.Status, Attempts(resp), want, pauses.all)
		}
	}
}

// A caller with a deadline gets the last response or error instead of the error
// of its deadline.
func TestNoPauseOutlastsTheContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	p := newPeer(t, 503)
	p.header.Set("Retry-After", "10")
	if resp := send(t, clientOf(&Transport{}), post(t, ctx, p.URL, nil)); resp.StatusCode != 503 {
		t.Error(resp.Status)
	}
}

func TestACallerWhoGivesUpEndsThePause(t *testing.T) {
	reason := errors.New("shutting down")
	for name, base := range map[string]http.RoundTripper{"answer": nil, "error": failing{io.ErrUnexpectedEOF}} {
		p := newPeer(t, 503)
		p.header.Set("Retry-After", "20")
		ctx, cancel := context.WithCancelCause(t.Context())
		transport := &Transport{Base: base}
		transport.sleep = func(ctx context.Context, d time.Duration) error {
			cancel(reason)
			<-ctx.Done()
			return ctx.Err()
		}
		_, err := (&http.Client{Transport: transport}).Do(post(t, ctx, p.URL, nil))
		last := "503"
		if name == "error" {
			last = "unexpected EOF"
		}
		if !errors.Is(err, reason) || !strings.Contains(err.Error(), last) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A caller whose context has ended gets the last response or error, and uses no
// retry of the allowance.
func TestNothingIsTriedAgainForACallerWhoHasGivenUp(t *testing.T) {
	broken := errors.New("broken")
	for _, want := range []error{nil, broken} {
		ctx, cancel := context.WithCancel(t.Context())
		transport := &Transport{Base: roundTrip(func(req *http.Request) (*http.Response, error) {
			cancel()
			if want != nil {
				return nil, want
			}
			return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
		})}
		resp, err := transport.RoundTrip(post(t, ctx, "http://localhost", nil))
		if err != want || (resp == nil) != (want != nil) || transport.spare.used > 0 {
			t.Errorf("%v, %v, want the error %v; %v retries were taken", resp, err, want, transport.spare.used)
		}
	}
}

func TestARealPauseEndsWithItsContext(t *testing.T) {
	p := newPeer(t, 503)
	p.header.Set("Retry-After", "20")
	ctx, cancel := context.WithCancel(t.Context())
	base := &answered{then: cancel}
	_, err := (&http.Client{Transport: &Transport{Base: base}}).Do(post(t, ctx, p.URL, nil))
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// answered calls then when the body of a response is closed, which is when the
// pause starts.
type answered struct{ then func() }

func (a *answered) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err == nil {
		resp.Body = &closer{resp.Body, a.then}
	}
	return resp, err
}

type closer struct {
	io.ReadCloser
	then func()
}

func (c *closer) Close() error {
	defer c.then()
	return c.ReadCloser.Close()
}

func TestBodiesOfAnswersAreClosedUnlessTheCallerGetsThem(t *testing.T) {
	p := newPeer(t, 503, 503)
	open := 0
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(req)
		open++
		resp.Body = &closer{resp.Body, func() { open-- }}
		resp.Request = nil // as some do
		return resp, err
	})
	resp, err := clientOf(&Transport{Base: base}).Do(post(t, t.Context(), p.URL, nil))
	if err != nil || open != 1 || Attempts(resp) != 3 {
		t.Fatalf("%v, %d open bodies", err, open)
	}
	resp.Body.Close()
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestAnAnswerThatNeverEndsIsNotReadToItsEnd(t *testing.T) {
	endless, gone := make(chan struct{}), make(chan struct{})
	first := make(chan bool, 1)
	first <- true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-first:
		default:
			return
		}
		w.WriteHeader(503)
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			close(gone)
		case <-endless:
		}
	}))
	defer server.Close()
	defer close(endless)
	if resp := send(t, clientOf(&Transport{}), post(t, t.Context(), server.URL, nil)); Attempts(resp) != 2 {
		t.Errorf("%d attempts", Attempts(resp))
	}
	<-gone
}

// TestAProblemThatNeverEndsIsNotReadToItsEnd has a problem document, which is
// read for what it says about a key.
func TestAProblemThatNeverEndsIsNotReadToItsEnd(t *testing.T) {
	var requests atomic.Int64
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) > 1 {
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(409)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer server.Close()
	op := &once.Operation[int]{Name: "charge", OnUnknown: once.Park}
	attempts, err := once.Do(t.Context(), memstore.New(nil), op.For("1"), func(ctx context.Context, _ once.Key) (int, error) {
		return Attempts(send(t, clientOf(&Transport{}), post(t, ctx, server.URL, nil))), nil
	})
	if attempts != 2 || err != nil {
		t.Errorf("%d attempts, %v", attempts, err)
	}
	<-gone
}

func TestARefusedCertificateIsRefusedAtOnce(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	for name, url := range map[string]string{"certificate": server.URL, "scheme": "gopher" + strings.TrimPrefix(server.URL, "https")} {
		pauses := &pauses{}
		if _, err := pauses.of(&Transport{}).Do(post(t, t.Context(), url, nil)); err == nil || len(pauses.all) > 0 {
			t.Errorf("%s: %v, after the pauses %v", name, err, pauses.all)
		}
	}
}

// The load that an outage adds to itself stays small.
func TestAnOutageIsNotMadeWorse(t *testing.T) {
	attempts, requests := 0, 1000
	var mu sync.Mutex
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		attempts++
		return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"0"}}, Body: http.NoBody}, nil
	})
	transport := &Transport{Base: base}
	clock := &pauses{}
	client := clock.of(transport)
	transport.now = func() time.Time { return clock.time } // stands still: a thousand requests at once
	transport.sleep = func(context.Context, time.Duration) error { return nil }
	for range requests {
		send(t, client, post(t, t.Context(), "http://localhost", nil))
	}
	if limit := requests + spareRetries + requests/10; attempts > limit || attempts < limit-5 {
		t.Errorf("%d attempts for %d requests, want %d", attempts, requests, limit)
	}

	// Then the one after a quiet time may try as often as the very first.
	attempts, clock.time = 0, clock.time.Add(40*time.Second)
	send(t, client, post(t, t.Context(), "http://localhost", nil))
	if attempts != 5 {
		t.Errorf("40 seconds later: %d attempts", attempts)
	}
	attempts, clock.time = 0, clock.time.Add(time.Hour)
	for range 5 {
		send(t, client, post(t, t.Context(), "http://localhost", nil))
	}
	if attempts != 5+spareRetries {
		t.Errorf("an hour later: %d attempts of 5 requests, so more than %d retries were saved", attempts, spareRetries)
	}
}
