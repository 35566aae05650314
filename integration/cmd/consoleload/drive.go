package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/internal/alike"
)

// from is where requests of httptest come from.
const from, header = "192.0.2.1", "X-User"

// page is a page that is measured. It returns the path of the next request. before is
// the answer to the one before.
type page struct {
	name string
	path func(before string) string
	anew bool // with a console that has seen nothing
	long bool // it reads all that there is, and has no limit
}

// visitor requests pages.
type visitor struct {
	settings
	store   once.Store
	console *console.Console
}

func (d *visitor) open() (*console.Console, error) {
	return console.New(console.Options{Stores: []console.Store{{Name: "shop", Store: d.store}}, Write: true, Log: slog.New(slog.DiscardHandler),
		Proxy: &console.Proxy{Header: header, From: []netip.Prefix{netip.MustParsePrefix(from + "/32")}, Role: console.Administer}})
}

// get requests a page, and returns what it took.
func (d *visitor) get(ctx context.Context, c http.Handler, path string) (body string, took time.Duration, err error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	r.Header.Set(header, "load")
	w := httptest.NewRecorder()
	began := time.Now()
	c.ServeHTTP(w, r)
	took = time.Since(began)
	body = w.Body.String()
	if w.Code == http.StatusSeeOther { // a search that has found one key
		return d.get(ctx, c, w.Header().Get("Location"))
	}
	if w.Code != http.StatusOK || bytes.Contains(w.Body.Bytes(), []byte("does not answer")) {
		return body, took, fmt.Errorf("%s: status %d: %s", path, w.Code, said(body))
	}
	return body, took, ctx.Err()
}

var tags = regexp.MustCompile(`(?s)<[^>]*>|\s+`)

// said returns the beginning of what can be read on a page.
func said(body string) string {
	text := regexp.MustCompile(` +`).ReplaceAllString(tags.ReplaceAllString(body, " "), " ")
	return text[:min(len(text), 800)]
}

var nextPage = regexp.MustCompile(`href="([^"]*[?&;]after=[^"]*)"`)

// on returns the paths of a list, one page after the other, and again from the first.
// It does not read on for longer, as people may where a list was cut.
func on(first string) func(string) string {
	return func(before string) string {
		if m := nextPage.FindStringSubmatch(before); m != nil {
			return strings.Replace(html.UnescapeString(m[1]), "scan=1", "", 1)
		}
		return first
	}
}

func always(path string) func(string) string { return func(string) string { return path } }

// groups are groups of failures, by their IDs: those of messages that fail in fill, and
// one that has no message.
var groups = []struct{ name, shelf, outbox string }{
	{"some", groupOf("no such customer c-1"), groupOf("the broker refuses the message of 1 MB")},
	{"none", groupOf("nobody has said this"), groupOf("nobody has said this")},
}

func groupOf(reason string) string { return alike.ID(alike.Text(reason)) }

// pages are all pages that can be read.
func (d *visitor) pages() []page {
	anyKey := func() once.Key { return keyOf(rand.IntN(d.keys)) }
	message := func() int { return rand.IntN(d.messages) }
	each := func(format string, of func() any) func(string) string {
		return func(string) string { return fmt.Sprintf(format, of()) }
	}
	all := []page{
		{name: "overview", path: always("/")},
		{name: "overview, first look", path: always("/"), anew: true},
		{name: "find, empty", path: always("/find")},
		{name: "find an id", path: each("/find?q=order-%d", func() any { return rand.IntN(d.keys / 20) })},
		{name: "find an id, first look", path: each("/find?q=order-%d", func() any { return rand.IntN(d.keys / 20) }), anew: true},
		{name: "find what is not there", path: each("/find?q=invoice-%d", func() any { return rand.Int() })},
		{name: "search all keys for a part of an id", path: each("/find?q=rder-%d&scan=1", func() any { return rand.IntN(d.keys / 20) }), long: true},
		{name: "search all keys for what is not there", path: each("/find?q=invoice-%d&scan=1", func() any { return rand.Int() }), long: true},
		{name: "find a key as it travels", path: each("/find?q=%s", func() any { return anyKey().String() })},
		{name: "find an operation and an id", path: func(string) string {
			k := anyKey()
			return "/find?q=" + url.QueryEscape(fmt.Sprintf("%s %s of %s", k.Operation, k.ID, k.Scope))
		}},
		{name: "find a message of the outbox", path: each("/find?q=m-%d", func() any { return message() })},
		{name: "find a parked message", path: each("/find?q=n-%d", func() any { return message() })},
		{name: "all keys, page by page", path: on("/find?all=1")},
		{name: "unknown, page by page", path: on("/unknown")},
		{name: "parked, page by page", path: on("/parked")},
	}
	for _, status := range []string{"unknown", "parked", "running", "done", "expired", "absent"} {
		all = append(all, page{name: "keys that are " + status, path: on("/find?status=" + status)})
	}
	all = append(all, []page{
		{name: "keys of an operation", path: on("/find?operation=pay%2Fcharge")},
		{name: "keys of a scope", path: on("/find?scope=tenant-7")},
		{name: "unknown keys of an operation", path: on("/unknown?operation=task-7")},
		{name: "unknown keys of a scope", path: on("/unknown?scope=tenant-7")},
		{name: "done keys of a scope, older than a week", path: on("/find?status=done&scope=tenant-9&older=168h")},
		{name: "keys younger than an hour", path: on("/find?newer=1h")},
		{name: "keys older than 30 days", path: on("/find?older=720h")},
		{name: "an id among an operation", path: each("/find?operation=nothing&q=order-%d", func() any { return rand.IntN(d.keys / 20) })},
		{name: "a key", path: func(string) string { return keyPath(anyKey()) }},
		{name: "a key, first look", path: func(string) string { return keyPath(anyKey()) }, anew: true},
		{name: "a key with a cause", path: func(string) string { return keyPath(keyOf(3 + 20*rand.IntN(d.keys/20))) }},
		{name: "a key with a message", path: func(string) string { return keyPath(keyOf(20 * rand.IntN(d.messages/20))) }},
		{name: "an unknown key", path: func(string) string { return keyPath(keyOf(7 + 1000*rand.IntN(d.keys/1000))) }},
	}...)
	for _, state := range []string{"parked", "waiting", "handled", "discarded"} {
		all = append(all, page{name: "messages that are " + state, path: on("/messages?state=" + state)},
			page{name: state + " messages of a consumer", path: on("/messages?consumer=consumer-4&state=" + state)},
			page{name: state + " messages of a topic", path: on("/messages?topic=topic-5&state=" + state)})
	}
	all = append(all, []page{
		{name: "parked messages of no topic", path: always("/messages?topic=none&state=parked")},
		{name: "parked messages of a consumer, no topic", path: always("/messages?consumer=consumer-1&topic=none&state=parked")},
		{name: "parked messages of an ordering key", path: each("/messages?order=n-%d&state=parked", func() any { return message() })},
		{name: "parked messages with an id", path: each("/messages?id=n-%d&state=parked", func() any { return message() })},
		{name: "parked messages of a consumer with an id", path: func(string) string {
			i := message()
			return fmt.Sprintf("/messages?consumer=consumer-%d&id=n-%d&state=parked", i%10, i)
		}},
		{name: "a parked message", path: func(string) string {
			i := message()
			return fmt.Sprintf("/messages/message?store=shop&consumer=consumer-%d&id=n-%d", i%10, i)
		}},
	}...)
	for _, group := range groups {
		all = append(all, []page{
			{name: "parked messages that failed alike, " + group.name, path: on("/messages?state=parked&alike=" + group.shelf)},
			{name: "parked of a consumer, alike, " + group.name, path: on("/messages?consumer=consumer-4&state=parked&alike=" + group.shelf)},
			{name: "parked of a topic, alike, " + group.name, path: on("/messages?topic=topic-5&state=parked&alike=" + group.shelf)},
			{name: "outbox, stuck, alike, " + group.name, path: on("/outbox?state=stuck&alike=" + group.outbox)},
			{name: "change a group, the form, " + group.name, path: always("/change?of=messages&do=replay&store=shop&state=parked&alike=" + group.shelf)},
		}...)
	}
	for _, state := range []string{"pending", "delayed", "held", "stuck", "published"} {
		all = append(all, page{name: "outbox, " + state, path: on("/outbox?state=" + state)},
			page{name: "outbox, " + state + ", of a topic", path: on("/outbox?topic=topic-5&state=" + state)},
			page{name: "outbox, " + state + ", of no topic", path: always("/outbox?topic=none&state=" + state)})
	}
	return append(all, []page{
		{name: "outbox, an id", path: each("/outbox?state=pending&id=m-%d", func() any { return message() })},
		{name: "outbox, an ordering key", path: each("/outbox?state=pending&order=order-%d", func() any { return message() })},
		{name: "a message of the outbox", path: func(string) string {
			i := message()
			return fmt.Sprintf("/outbox/message?store=shop&id=m-%d&seq=%d", i, i+1)
		}},
		{name: "consumers", path: always("/consumers")},
		{name: "a consumer", path: each("/consumers/one?store=shop&name=consumer-%d", func() any { return rand.IntN(10) })},
		{name: "change many messages, the form", path: always("/change?of=messages&do=replay&store=shop&state=parked")},
		{name: "jobs", path: always("/jobs")},
		{name: "audit", path: always("/audit")},
	}...)
}

func keyPath(k once.Key) string {
	q := url.Values{"store": {"shop"}, "operation": {k.Operation}, "id": {k.ID}}
	if k.Scope != "" {
		q.Set("scope", k.Scope)
	}
	return "/key?" + q.Encode()
}

const (
	anewAtMost = 20 // requests that need a console of their own
	longAtMost = 5  // requests that have no limit
)

// drive prints a table of what all pages take, and returns those that are slow.
func drive(ctx context.Context, store once.Store, s settings, out io.Writer) (slow []string, err error) {
	d := &visitor{settings: s, store: store}
	if d.console, err = d.open(); err != nil {
		return nil, err
	}
	defer d.console.Close()
	fmt.Fprintf(out, "%-40s %8s %8s %8s %8s %8s\n", "page", "requests", "p50 ms", "p95 ms", "max ms", "kB")
	var problems []error
	for _, p := range d.pages() {
		took, largest, err := d.times(ctx, p)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", p.name, err))
			continue
		}
		slices.Sort(took)
		at := func(q float64) time.Duration { return took[min(int(q*float64(len(took))), len(took)-1)] }
		mark := ""
		if p.long {
			mark = "all is read"
		} else if at(0.95) > s.limit {
			mark = "slow"
			slow = append(slow, p.name)
		}
		ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
		fmt.Fprintf(out, "%-40s %8d %8s %8s %8s %8d %s\n", p.name, len(took), ms(at(0.5)), ms(at(0.95)), ms(took[len(took)-1]), largest/1000, mark)
	}
	return slow, errors.Join(problems...)
}

// times requests a page as often as it is to be.
func (d *visitor) times(ctx context.Context, p page) (all []time.Duration, largest int, err error) {
	n := d.requests
	if p.anew {
		n = min(n, anewAtMost)
	}
	if p.long {
		n = min(n, longAtMost)
	}
	body := ""
	for range n {
		c := d.console
		if p.anew {
			if c, err = d.open(); err != nil {
				return nil, 0, err
			}
		}
		var took time.Duration
		body, took, err = d.get(ctx, c, p.path(body))
		if p.anew {
			c.Close()
		}
		if err != nil {
			return nil, 0, err
		}
		all, largest = append(all, took), max(largest, len(body))
	}
	return all, largest, nil
}
