//go:build linux

package console

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
)

// picturesVar names the directory of the pictures in the documentation. "make
// screenshots" sets it.
const picturesVar = "ONCE_TEST_PICTURES"

// largestPicture is the largest file, in bytes, that the documentation shows.
const largestPicture = 120 << 10

// steady replaces what differs from run to run: times, random ids, and the line that
// shows how long the console has run. The page is told first that it is no longer
// seen, so that it takes no more news.
const steady = `(function () {
	window.dispatchEvent(new Event("pagehide"))
	var w = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
	for (var n = w.nextNode(); n; n = w.nextNode()) {
		n.data = n.data.replace(/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? UTC/g, "2026-03-02 03:07:41 UTC")
			.replace(/\d+ (ms|s|m) ago|just now/g, "4 m ago").replace(/\b[0-9a-f]{32}\b/g, "1abb29ea3fdc240e97dfecb16d958a96")
	}
	document.querySelectorAll("polyline").forEach(function (l) {
		var end = l.getAttribute("points").split(" ").pop().split(",")[1]
		l.setAttribute("points", "2,22 30,22 34,18 60,18 64," + end + " 119," + end)
	})
})()`

// The pictures in the documentation show the pages as they are, on a bad day of a
// shop.
func TestPictures(t *testing.T) {
	dir := os.Getenv(picturesVar)
	if dir == "" {
		t.Skip(picturesVar + " is not set: make screenshots does that")
	}
	proof.Must(t, os.MkdirAll(dir, 0o755))
	s := newShop(t, engines.SQLite, nil)
	s.badDay()
	s.show(s.lagging())
	disputed := once.Key{Scope: "tenant-7", Operation: "pay/charge", ID: "order-4711"}
	wide := look{1200, 760, false}
	b := s.open(ann)
	proof.Await(t, "the overview has seen the bad day", func() bool {
		b.visit("/")
		seen := b.text()
		return eval[int](b, `document.querySelectorAll(".card.urgent").length`) == 3 && strings.Contains(seen, "most for billing") &&
			strings.Contains(seen, "synchronous_commit") && !strings.Contains(seen, "just now") // which would not last
	})
	keep := func(name string, l look, path string) {
		b.looksAt(l)
		b.visit(path)
		first := b.still()
		if b.visit(path); !bytes.Equal(first, b.still()) {
			t.Errorf("%s differs when it is taken again", name)
		}
		write(t, filepath.Join(dir, name+".png"), first)
	}
	keep("console-overview", wide, "/")
	keep("console-key", wide, link(once.Key{Operation: "order", ID: "order-4709"}))
	keep("console-dark", look{1200, 760, true}, "/unknown")
	keep("console-phone", look{375, 812, false}, link(disputed))
	keep("console-messages", wide, "/messages?consumer=letters")
	b.looksAt(wide)
	b.visit(link(disputed))
	b.click("input[name=choice][value=happened]")
	b.fill("#settle ~ form #reason", "the provider has one charge, ch_99: ticket 88")
	b.follow("#settle ~ form button.main")
	write(t, filepath.Join(dir, "console-confirm.png"), b.still())
	s.failures()
	proof.Await(t, "the navigation has counted the failures", func() bool {
		b.visit("/")
		return eval[string](b, `document.querySelector("[data-count=shelved]").textContent`) == "9: 9"
	})
	keep("console-failures", wide, "/messages")
}

// badDay fills the shop: an order was charged, and whether it was charged is not
// known for the next ones.
func (s *shop) badDay() {
	s.t.Helper()
	of := func(op, id string) once.Key { return once.Key{Scope: "tenant-7", Operation: op, ID: id} }
	var parked []store.Shelved
	for i := range 9 {
		id := fmt.Sprint("order-", 4707+i)
		cause := s.order(id)
		s.later()
		s.led(once.Key{Operation: "billing", ID: "m-" + id}, cause, once.Done, "")
		s.later()
		switch {
		case i%3 == 1:
			s.bring(of("pay/charge", id), once.Unknown, "read tcp 10.0.0.7:443: connection reset by peer")
		case i%3 == 2:
			s.led(once.Key{Operation: "letters", ID: "m-" + id}, cause, once.Parked, "the mail server cannot be asked whether it was sent")
			parked = append(parked, store.Shelved{Consumer: "letters", Key: "m-" + id, Message: broker.Message{ID: "m-" + id, Topic: "order.placed", OrderingKey: id, Body: []byte("{}")},
				State: store.Parked, Attempts: 1, Reason: store.UnknownOutcome + "the mail server cannot be asked whether it was sent"})
		}
	}
	shelf, ok := once.As[store.Shelf](s.store)
	if !ok {
		s.t.Fatal("the store has no shelf")
	}
	s.later()
	proof.Must(s.t, shelf.Shelve(s.t.Context(), parked))
}

// lagging registers consumers, and returns what lets the console ask for their lag.
func (s *shop) lagging() func(*console.Options) {
	s.t.Helper()
	registry, ok := once.As[store.Registry](s.store)
	if !ok {
		s.t.Fatal("the store has no registry")
	}
	var sources []broker.Source
	for i, name := range []string{"letters", "billing"} {
		of := heap{name: "rabbitmq queue " + name, lag: func() (broker.Lag, error) {
			return broker.Lag{Messages: int64(3 + 31*i), Oldest: 4 * time.Minute}, nil
		}}
		sources = append(sources, of)
		_, err := registry.Register(s.t.Context(), store.Consumer{Name: name, Source: of.Name()})
		proof.Must(s.t, err)
	}
	return func(o *console.Options) { o.Lag = console.LagOf(sources...) }
}

// later returns when the clock of SQLite, which counts milliseconds, has gone on: what
// has the same time has no order.
func (s *shop) later() {
	s.t.Helper()
	at := time.Now().Add(2 * time.Millisecond)
	proof.Await(s.t, "the clock goes on", func() bool { return time.Now().After(at) })
}

// led leaves a key of work for a message in a state.
func (s *shop) led(k, cause once.Key, to once.Status, reason string) {
	s.t.Helper()
	rec, err := s.store.Claim(s.t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k, Owner: k.UUID()}, Lease: time.Hour, Cause: cause.UUID()})
	proof.Must(s.t, err)
	proof.Must(s.t, s.store.Settle(s.t.Context(), once.Settlement{Fence: once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt},
		Status: to, Reason: reason, KeepOutcome: time.Hour, KeepKey: time.Hour}))
}

// still returns a picture of the page without what differs from run to run.
func (b *tab) still() []byte {
	b.t.Helper()
	_, err := chromedp.Run(b.ctx, chromedp.Evaluate[chromedp.Void](steady))
	b.must(err)
	shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	b.must(err)
	return shot
}

// write writes a picture with a palette of its most frequent colours.
func write(t *testing.T, file string, shot []byte) {
	t.Helper()
	whole, err := png.Decode(bytes.NewReader(shot))
	proof.Must(t, err)
	small := image.NewPaletted(whole.Bounds(), palette(whole))
	draw.Draw(small, small.Bounds(), whole, whole.Bounds().Min, draw.Src)
	var out bytes.Buffer
	proof.Must(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	if out.Len() > largestPicture {
		t.Errorf("%s has %d bytes", filepath.Base(file), out.Len())
	}
	proof.Must(t, os.WriteFile(file, out.Bytes(), 0o644))
}

func palette(of image.Image) color.Palette {
	counts := make(map[color.RGBA]int)
	for y := of.Bounds().Min.Y; y < of.Bounds().Max.Y; y++ {
		for x := of.Bounds().Min.X; x < of.Bounds().Max.X; x++ {
			counts[color.RGBAModel.Convert(of.At(x, y)).(color.RGBA)]++
		}
	}
	var all []color.RGBA
	for c := range counts {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int { // equal counts: in the order of the colours
		if n := counts[b] - counts[a]; n != 0 {
			return n
		}
		return (int(a.R)<<16 | int(a.G)<<8 | int(a.B)) - (int(b.R)<<16 | int(b.G)<<8 | int(b.B))
	})
	var p color.Palette
	for _, c := range all[:min(len(all), 256)] {
		p = append(p, c)
	}
	return p
}
