package console

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	maxStreams   = 64 // at once
	maxStreamsOf = 6  // of one person

	streamTick  = time.Second      // between two looks for news, none of which asks a store
	streamBeat  = 15 * time.Second // a comment, so that proxies keep the connection
	streamTime  = 10 * time.Minute // then the browser connects again
	streamWrite = 10 * time.Second // a reader that takes longer is given up
)

// refreshing is a header of the script's own requests: a page that reads itself
// again is no use of a sign-in.
const refreshing = "Once-Refresh"

// streams counts the open streams.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by the name of the person
}

var errManyStreams = errors.New("too many streams")

func (s *streams) begin(who string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxStreams || s.of[who] >= maxStreamsOf {
		return errManyStreams
	}
	if s.of == nil {
		s.of = make(map[string]int)
	}
	s.all++
	s.of[who]++
	return nil
}

func (s *streams) end(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[who]--; s.of[who] == 0 {
		delete(s.of, who)
	}
}

// livePart is a part of a page that a stream keeps up to date.
type livePart struct {
	// news returns a number that changes when the part may have changed.
	news func() int

	// page returns the name and the content of the page, from memory. If last is set,
	// it changes no more.
	page func() (of string, p page, last bool)
}

// livePart returns what the parameter of names.
func (v *view) livePart() (l livePart, ok bool) {
	q := v.r.URL.Query()
	always := 0
	each := func() int { always++; return always }
	switch q.Get("of") {
	case "overview":
		return livePart{func() int { return v.sampler.watch(v.now()) }, func() (string, page, bool) { return "overview", v.overviewOf(v.seen()), false }}, true
	case "job":
		j := v.jobNumbered(q.Get("number"))
		return livePart{each, func() (string, page, bool) {
			p := v.jobPage(j)
			return "job", p, p.Live == ""
		}}, j != nil
	case "comparison":
		x := v.comparisonNumbered(q.Get("number"))
		return livePart{each, func() (string, page, bool) {
			p, _ := v.comparisonPage(x, "", 0, false) // of no kind that there might not be
			return "comparison", v.pageOfComparison(p), !p.Working
		}}, x != nil
	case "ask":
		i := v.inquiryNumbered(q.Get("number"))
		return livePart{each, func() (string, page, bool) {
			p := v.inquiryPage(i)
			p.cut(q.Get("from"))
			return "ask", v.pageOfInquiry(p), !p.Working
		}}, i != nil
	}
	v.fail(http.StatusNotFound, "There is no such stream", "A page opens it by itself.")
	return l, false
}

// events keeps a page up to date by server-sent events, until the sign-in or the
// console ends. A page that gets none reads itself again.
func (v *view) events() {
	rc := http.NewResponseController(v.w)
	if !flushes(v.w) || rc.SetWriteDeadline(time.Now().Add(streamWrite)) != nil { // without a deadline, a reader that stalls would keep its place for ever
		v.fail(http.StatusNotImplemented, "There are no live updates here", "The page reads itself again instead.")
		return
	}
	if v.r.ProtoMajor == 1 {
		v.w.Header().Set("Connection", "close") // the deadlines would be those of its next request, too
	}
	_ = rc.SetReadDeadline(time.Time{}) // the server's would end the request
	if v.r.Method == http.MethodHead {
		return
	}
	part, ok := v.livePart()
	if !ok {
		return
	}
	select {
	case <-v.closing:
		v.fail(http.StatusServiceUnavailable, "The console is closing", "Open it again in a moment.")
		return
	default:
	}
	if err := v.streams.begin(v.who.Name); err != nil {
		v.fail(http.StatusTooManyRequests, "There are too many live pages", "The page reads itself again instead. Close some of its tabs.")
		return
	}
	defer v.streams.end(v.who.Name)
	h := v.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events until it has many
	v.w.WriteHeader(http.StatusOK)
	send := func(event []byte) bool {
		if rc.SetWriteDeadline(time.Now().Add(streamWrite)) != nil {
			return false
		}
		_, err := v.w.Write(event)
		return err == nil && rc.Flush() == nil
	}
	v.stream(part, send)
}

// stream sends a part at first, and then whenever it has changed.
func (v *view) stream(part livePart, send func([]byte) bool) {
	if !send([]byte("retry: 3000\n\n")) {
		return
	}
	tick := time.NewTicker(streamTick)
	defer tick.Stop()
	var sent []byte
	news, begun, wrote := -1, time.Now(), time.Now()
	for {
		if now := part.news(); now != news {
			of, p, last := part.page()
			text, err := v.part(of, p)
			if err != nil {
				v.log.ErrorContext(v.r.Context(), "console: a page cannot be rendered", "page", of, "error", err)
				return
			}
			if !bytes.Equal(text, sent) {
				if !send(serverSent("part", text)) {
					return
				}
				sent, wrote = text, time.Now()
			}
			if news = now; last {
				send(serverSent("end", nil))
				return
			}
		}
		select {
		case <-v.r.Context().Done():
			return
		case <-v.closing:
			return
		case <-tick.C:
		}
		if !v.isStillIn() || time.Since(begun) > streamTime {
			return
		}
		if time.Since(wrote) > streamBeat {
			if !send([]byte(":\n\n")) {
				return
			}
			wrote = time.Now()
		}
	}
}

// isStillIn reports whether the person who made the request could make it again.
func (v *view) isStillIn() bool {
	who, _, _ := v.whoIs(v.r, false)
	return who != nil && who.Name == v.who.Name && who.Role == v.who.Role
}

// part renders the part of a page that changes, and the numbers of the navigation.
func (v *view) part(of string, p page) ([]byte, error) {
	var out bytes.Buffer
	f := v.frame(p)
	err := v.pages[of].ExecuteTemplate(&out, "part", f)
	if err == nil {
		err = v.pages[of].ExecuteTemplate(&out, "counts", f)
	}
	return out.Bytes(), err
}

// serverSent encodes a server-sent event.
func serverSent(name string, data []byte) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "event: %s\n", name)
	for line := range strings.Lines(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data))) {
		io.WriteString(&out, "data: "+strings.TrimSuffix(line, "\n")+"\n") // a Buffer takes everything
	}
	if len(data) == 0 {
		out.WriteString("data:\n") // browsers ignore an event without data
	}
	out.WriteString("\n")
	return out.Bytes()
}

// flushes reports whether what is written can be sent at once. It asks before
// anything is sent, while a page can still say so.
func flushes(w http.ResponseWriter) bool {
	for {
		switch of := w.(type) {
		case http.Flusher, interface{ FlushError() error }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = of.Unwrap()
		default:
			return false
		}
	}
}
