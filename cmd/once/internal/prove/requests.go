package prove

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/trial"
)

// Request is the template of a request. {{id}} in its texts is an ID that the proof
// makes for each request.
type Request struct {
	Place     string // where a person wrote it, such as orders.jsonl:3; empty: in a flag
	Method    string
	Path      string
	Header    http.Header
	Body      string
	KeyHeader string
	Key       string // idempotency key; default: {{id}}
	ID        string // by which its effects are counted; default: the key
}

// String names the template, as in POST /orders.
func (t *Request) String() string { return t.Method + " " + t.Path }

// Fresh reports whether each request that is made of the template has a key and an
// ID of its own.
func (t *Request) Fresh() bool { return isFresh(t.key()) && isFresh(t.name()) }

func isFresh(text string) bool { return strings.Contains(text, "{{id}}") }

func (t *Request) key() string { return cmp.Or(t.Key, "{{id}}") }

func (t *Request) name() string { return cmp.Or(t.ID, t.key()) }

// texts are where placeholders may be.
func (t *Request) texts() []string {
	texts := []string{t.Path, t.Body, t.Key, t.ID}
	for _, values := range t.Header {
		texts = append(texts, values...)
	}
	return texts
}

// in adds the place of the template to an error.
func (t *Request) in(err error) error {
	if t.Place == "" {
		return err
	}
	return fmt.Errorf("%s: %w", t.Place, err)
}

// request makes a request of the template.
func (t *Request) request(id string) *request {
	words := map[string]string{"id": id}
	return &request{id: fill(t.name(), words), key: fill(t.key(), words), of: t, words: words}
}

// request is a request of the proof, and what became of it.
type request struct {
	id, key string
	of      *Request
	words   map[string]string

	mu       sync.Mutex
	first    *answer
	others   []answer // that differ from the first, each once
	lastSeen string   // of an attempt without an answer
}

// answer is what callers compare.
type answer struct {
	status int
	sum    [32]byte // of what callers can tell apart
	text   string   // the beginning of the body, and the headers that are compared
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.text) }

func (a answer) accepted() bool { return a.status >= 200 && a.status < 300 }

const (
	longestAnswer = 8 << 20
	shownAnswer   = 80 // bytes
	shortPause    = 10 * time.Millisecond
	longPause     = 320 * time.Millisecond
)

// callers send requests, and repeat them.
type callers struct {
	options Options
	client  *http.Client
	copies  *copies

	mu      sync.Mutex
	tally   Attempts
	answers Answers
}

// send sends a request for the first time: twice at once if its step says so.
func (c *callers) send(ctx context.Context, r *request, s step) error {
	if !s.double {
		return c.insist(ctx, r, s)
	}
	second := make(chan error, 1)
	go func() { second <- c.insist(ctx, r, step{}) }()
	return errors.Join(c.insist(ctx, r, s), <-second)
}

// insist repeats a request until it has an answer, or patience ends.
func (c *callers) insist(ctx context.Context, r *request, s step) error {
	pause := shortPause
	for begun := time.Now(); ; trial.Pause(ctx, pause) {
		to, err := c.copies.next(ctx)
		if err != nil {
			return err
		}
		a, seen := c.attempt(ctx, r, to.service, s)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s = step{} // only the first reply is lost on purpose
		if a != nil {
			c.note(r, *a)
			return nil
		}
		r.saw(seen)
		if time.Since(begun) > c.options.Patience {
			return nil
		}
		pause = min(2*pause, longPause)
	}
}

func (r *request) saw(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastSeen = what
}

// attempt sends a request once. Each attempt ends in exactly one of the ways that
// [Attempts] counts.
func (c *callers) attempt(ctx context.Context, r *request, service string, s step) (a *answer, seen string) {
	var count *int
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tally.Sent++
		*count++
	}()
	limited, cancel := context.WithTimeout(ctx, c.options.Patience)
	defer cancel()
	if s.lose == hungUp {
		defer time.AfterFunc(s.after, cancel).Stop()
	}
	a, again, err := c.exchange(limited, r, service)
	switch {
	case s.lose != arrives:
		count = &c.tally.Lost
		return nil, "a reply that was lost on purpose"
	case err != nil:
		count = &c.tally.NoReply
		return nil, err.Error()
	case again:
		count = &c.tally.ToldToRepeat
		return nil, a.String()
	}
	count = &c.tally.Answered
	return a, ""
}

func (c *callers) exchange(ctx context.Context, r *request, service string) (a *answer, again bool, err error) {
	t, words := r.of, r.words
	req, err := http.NewRequestWithContext(ctx, t.Method, strings.TrimSuffix(service, "/")+fill(t.Path, words),
		strings.NewReader(fill(t.Body, words)))
	if err != nil {
		return nil, false, err
	}
	for name, values := range t.Header {
		for _, v := range values {
			req.Header.Add(name, fill(v, words))
		}
	}
	if t.KeyHeader != "" {
		req.Header.Set(t.KeyHeader, r.key)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestAnswer))
	if err != nil {
		return nil, false, err
	}
	headers := fmt.Sprintf("Content-Type %q, Location %q", resp.Header.Get("Content-Type"), resp.Header.Get("Location"))
	sum := sha256.New()
	fmt.Fprintf(sum, "%d, %s\n", resp.StatusCode, headers)
	sum.Write(body)
	a = &answer{status: resp.StatusCode, text: fmt.Sprintf("%q, %s", bytes.TrimSpace(body[:min(len(body), shownAnswer)]), headers)}
	sum.Sum(a.sum[:0])
	return a, repeatable(resp), nil
}

// repeatable reports whether a response asks for a repeat instead of being an
// answer, as httponce.Transport understands it. The proof also repeats a request
// after 500: its connections to the database were cut.
func repeatable(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusConflict:
		return resp.Header.Get("Retry-After") != ""
	}
	return resp.StatusCode >= 500
}

// note compares an answer with the first one of the request.
func (c *callers) note(r *request, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r.first == nil:
		r.first = &a
		c.answers.First++
	case r.first.sum == a.sum:
		c.answers.Same++
	default:
		c.answers.Different++
		for _, known := range r.others {
			if known.sum == a.sum {
				return
			}
		}
		r.others = append(r.others, a)
	}
}

// answered returns the first answer, or nil.
func (r *request) answered() *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}
