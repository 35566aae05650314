package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/memstore"
)

// The doctor looks while somebody looks at the overview, at most every five minutes,
// and no page waits for it.
func TestTheDoctorIsNotAskedByPages(t *testing.T) {
	var asked atomic.Int64
	found := []Finding{{"clock", Note, "it is a second off", "Ages are wrong by that.", ""},
		{"parked-keys", Warning, "2 keys are parked", "They wait.", "Decide."},
		{"fsync-off" + script, Unsafe, "fsync is off " + script, "A crash loses commits.", "Turn it on."}}
	var err error
	log := new(logtest.Log)
	c, now := still(t, Options{Stores: []Store{{Name: "shop", Store: memstore.New(nil), Doctor: func(ctx context.Context) ([]Finding, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("an examination may take for ever")
		}
		if asked.Add(1) == 3 {
			panic("dial db://app:hunter2@db")
		}
		return found, err
	}}}, Log: slog.New(slog.NewTextHandler(log, nil))})
	tick := func() {
		c.checkUp(t.Context())
		c.running.Wait()
	}
	b := as(t, c, lookToken)
	c.sampler.looked = time.Time{}
	tick()
	if asked.Load() != 0 {
		t.Error("the doctor looks although nobody else does")
	}
	b.get("/").is(http.StatusOK).shows("Doctor has not looked yet")
	for range 5 {
		b.get("/")
	}
	if asked.Load() != 0 {
		t.Fatal("a page asks the doctor")
	}
	tick()
	now.Add(60)
	tick()
	b.get("/").shows("checked 60 s ago", "unsafe fsync-off", "A crash loses commits. To do: Turn it on.", "warning parked-keys", "1 note", "Something is unsafe").hides("Nothing needs a person", script)
	if at := strings.Index(b.text, "fsync"); at > strings.Index(b.text, "parked-keys") {
		t.Error("the worst is not first")
	}
	if asked.Load() != 1 {
		t.Errorf("the doctor has looked %d times within a minute", asked.Load())
	}
	now.Add(int64(checkEvery / time.Second))
	found, err = nil, errors.New("permission denied")
	b.get("/")
	tick()
	b.get("/").shows("It could not look at everything: permission denied").hides("Nothing is unsafe")
	now.Add(int64(checkEvery / time.Second))
	b.get("/")
	tick()
	b.get("/").shows("the examination panicked").hides("hunter2")
	now.Add(int64(checkEvery / time.Second))
	err = nil
	b.get("/")
	tick()
	b.get("/").shows("Nothing is unsafe, and nothing needs attention", "Nothing needs a person now")
	if !strings.Contains(log.String(), "console: a store cannot be examined") || !strings.Contains(log.String(), "console: an examination panicked") {
		t.Errorf("logged %s", log)
	}
}

func TestTheRateOfTheOutboxIsThatOfThePublishedMessages(t *testing.T) {
	n := int64(600)
	c, now := still(t, Options{Stores: []Store{{Name: "shop", Store: memstore.New(nil), Published: func() int64 { return n }}}})
	b := as(t, c, lookToken)
	b.get("/").shows("Messages published 600 since this program started").hides("a minute of late")
	now.Add(30)
	n += 60
	b.get("/").shows("Messages published 660 since this program started, 120 a minute of late")
	now.Add(1200)
	b.get("/").shows("Messages published 660 since this program started").hides("a minute of late")
	as(t, open(t, Options{}), lookToken).get("/").hides("Messages published")
}

// Who knows how many duplicates were prevented is asked. Where nobody knows, the page
// says so, and not 0.
func TestDuplicatesAreNotMadeUp(t *testing.T) {
	n := int64(1234)
	c, now := still(t, Options{Stores: []Store{{Name: "shop", Store: memstore.New(nil), Duplicates: func() int64 { return n }}}})
	b := as(t, c, lookToken)
	b.get("/").shows("Duplicates prevented 1,234 since this program started", "Nothing needs a person now").hides("not known here")
	n += 10
	now.Add(10)
	b.get("/").shows("1,244")
	if !strings.Contains(b.text, "between 1234 and 1244") {
		t.Error("the line does not show both")
	}
	c, _ = still(t, Options{})
	as(t, c, lookToken).get("/").shows("Duplicates prevented: not known here").hides("since this program started")
}
