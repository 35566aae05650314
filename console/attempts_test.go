package console

import (
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/logtest"
)

// Whoever tries many tokens is told to wait, and fills no log. A right token gets in
// all the same, so that nobody is locked out.
func TestWrongTokensAreLimited(t *testing.T) {
	var log logtest.Log
	c := open(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	c.Close()
	now := time.Unix(1_800_000_000, 0)
	c.now = func() time.Time { return now }
	from := "192.0.2.7:4711"
	b := visit(t, c)
	b.prepare = func(r *http.Request) { r.RemoteAddr = from }
	refused := func(want int) {
		t.Helper()
		b.get("/").fill("/sign-in", "token", "wrong-0123456789-abcdef").is(want)
	}
	for range wrongOfOne.Burst {
		refused(http.StatusForbidden)
	}
	for range 100 {
		refused(http.StatusTooManyRequests)
	}
	b.shows("Too many wrong tokens", "A right one gets in at any time")
	if after, err := strconv.Atoi(b.header.Get("Retry-After")); err != nil || after < 1 || after > 6 {
		t.Errorf("Retry-After is %q", b.header.Get("Retry-After"))
	}
	if n := strings.Count(log.String(), "a sign-in was refused"); n != wrongOfOne.Burst {
		t.Errorf("%d lines are logged", n)
	}
	from = "192.0.2.8:1" // somebody else
	refused(http.StatusForbidden)
	from = "192.0.2.7:4711"
	now = now.Add(6 * time.Second)
	refused(http.StatusForbidden)
	if !strings.Contains(log.String(), "not_logged=100") {
		t.Error("what was not logged is not counted")
	}
	refused(http.StatusTooManyRequests)
	b.get("/").fill("/sign-in", "token", lookToken).is(http.StatusOK).shows("Overview")
	for i := range 2 * wrongOfAll.Burst { // each from an address of its own
		from = fmt.Sprintf("198.51.100.%d:1", i)
		visitor := visit(t, c)
		visitor.prepare = b.prepare
		visitor.get("/").fill("/sign-in", "token", "wrong-0123456789-abcdef")
	}
	if n := strings.Count(log.String(), "a sign-in was refused"); n > wrongOfAll.Burst+10 {
		t.Errorf("%d lines are logged of many addresses", n)
	}
	from = "203.0.113.9:1"
	visitor := visit(t, c)
	visitor.prepare = b.prepare
	visitor.get("/").fill("/sign-in", "token", adminToken).is(http.StatusOK).shows("ada")
}

// The memory is bounded, and an IPv6 network counts as one address.
func TestAddressesAreBounded(t *testing.T) {
	var a attempts
	now := time.Unix(1_800_000_000, 0)
	for i := range 3 * maxAddresses {
		a.wrong(fmt.Sprintf("[2001:db8:%x::1]:80", i), now)
	}
	if len(a.of) != maxAddresses {
		t.Errorf("%d addresses are remembered", len(a.of))
	}
	now = now.Add(time.Hour)
	a.wrong("192.0.2.7:1", now)
	if len(a.of) != 1 {
		t.Errorf("%d addresses are remembered an hour later", len(a.of))
	}
	for _, same := range [][2]string{{"[2001:db8::1]:80", "[2001:db8::ffff]:81"}, {"[::ffff:192.0.2.7]:1", "192.0.2.7:2"}, {"[fe80::1%eth0]:1", "[fe80::2%eth1]:1"}} {
		if addressOf(same[0]) != addressOf(same[1]) {
			t.Errorf("%v are two", same)
		}
	}
	if addressOf("[2001:db8:1::1]:80") == addressOf("[2001:db8:2::1]:80") {
		t.Error("two networks are one")
	}
}
