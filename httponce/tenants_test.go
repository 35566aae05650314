package httponce_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// TestAmbiguousRequestsAreRefusedOrHaveOneKey sends requests over a raw
// connection that parsers interpret differently. Each is refused, or is one
// request with one key.
func TestAmbiguousRequestsAreRefusedOrHaveOneKey(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(posted, old, replacement, 1) }
	const line = "Idempotency-Key: k\r\n"
	for name, test := range map[string]struct {
		request string
		status  int
		problem string
		runs    int64
	}{
		"another case of the name":     {with(line, "iDEMPOTENCY-kEY: k\r\n"), 201, "", 1},
		"two cases of the name":        {with(line, line+"idempotency-key: k\r\n"), 400, "key-malformed", 0},
		"joined by a comma":            {with(line, "Idempotency-Key: k, k\r\n"), 400, "key-malformed", 0},
		"joined, quoted":               {with(line, "Idempotency-Key: \"k\",\"k\"\r\n"), 400, "key-malformed", 0},
		"a space before the colon":     {with(line, "Idempotency-Key : k\r\n"), 400, "", 0},
		"a folded line":                {with(line, "Idempotency-Key: k\r\n x\r\n"), 400, "key-malformed", 0},
		"a folded line that begins it": {with(line, "Idempotency-Key:\r\n k\r\n"), 201, "", 1},
		"a zero byte":                  {with(line, "Idempotency-Key: k\x00\r\n"), 400, "", 0},
		"a bare carriage return":       {with(line, "Idempotency-Key: k\rX: y\r\n"), 400, "", 0},
		"a bare line feed":             {with(line, "Idempotency-Key: k\nX: y\r\n"), 201, "", 1},
		"white space around it":        {with(line, "Idempotency-Key: \t k \t\r\n"), 201, "", 1},
		"an underscore":                {with(line, "Idempotency_Key: k\r\n"), 400, "key-missing", 0},
		"as a trailer": {strings.NewReplacer(line, "", "Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\nTrailer: Idempotency-Key\r\n\r\n5\r\nhello\r\n0\r\n"+line+"\r\n").Replace(posted),
			400, "key-missing", 0},
		"two lengths that differ": {with("Content-Length: 5\r\n", "Content-Length: 5\r\nContent-Length: 4\r\n"), 400, "", 0},
		"length and chunks":       {with("Content-Length: 5\r\n\r\nhello", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), 201, "", 1},
		"chunks with a bad end":   {with("Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nX\r\n\r\n"), 400, "body-unreadable", 0},
		"an unknown coding":       {with("Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked, identity\r\n\r\nhello"), 501, "", 0},
		"a body cut short":        {strings.TrimSuffix(posted, "lo"), 400, "body-unreadable", 0},
	} {
		t.Run(name, func(t *testing.T) {
			onEachForm(t, created, &httponce.Options{Required: true}, func(t *testing.T, s *service) {
				a := cutOff(t, strings.TrimPrefix(s.url, "http://"), test.request)
				if a.status != test.status || a.problem() != test.problem {
					t.Errorf("got %+v", a)
				}
				s.wantRuns(test.runs)
				page, err := s.store.List(t.Context(), once.RecordQuery{})
				if err != nil || int64(len(page.Records)) != test.runs || test.runs == 1 && page.Records[0].Key.ID != "k" {
					t.Errorf("claimed: %+v, %v", page, err)
				}
				if test.runs == 1 {
					if again := overTCP(t, strings.TrimPrefix(s.url, "http://"), posted).final(); !again.replayed() || again.body != a.body {
						t.Errorf("the plain form of it got %+v", again)
					}
				}
			})
		})
	}
}

// cutOff sends a request. If its body is incomplete, it closes its side of the
// connection.
func cutOff(t *testing.T, address, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testenv.Patience))
	_, _ = io.WriteString(conn, request)
	if strings.HasSuffix(request, "hel") { // elsewhere it would mean that the client has left
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	return readAnswers(conn).final()
}

// TestTenantsDoNotShareKeys sends the same key and request for 8 callers, 8
// times each, concurrently. Each caller has one effect and gets its own
// response, sealed or not.
func TestTenantsDoNotShareKeys(t *testing.T) {
	ring, err := httponce.NewRing(httponce.Secret{ID: "a", Bytes: bytes.Repeat([]byte("a"), 32)})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*httponce.Options{nil, {Ring: ring}, {Limits: httponce.Limits{Open: 100}}} {
		onEachForm(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "for %s: %s", r.Header.Get("Tenant"), body)
		}, o, func(t *testing.T, s *service) {
			const callers, each = 8, 8
			var all sync.WaitGroup
			for i := range callers * each {
				all.Add(1)
				go func() {
					defer all.Done()
					name := fmt.Sprint("tenant", i%callers)
					a := s.send("k", strings.Repeat("x", 100), func(r *http.Request) { r.Header.Set("Tenant", name) })
					if a.status != 200 || a.body != "for "+name+": "+strings.Repeat("x", 100) {
						t.Errorf("%s got %+v", name, a)
					}
				}()
			}
			all.Wait()
			s.wantRuns(callers)
		})
	}
}

// TestSwappedRecordsAreDetected copies the sealed response of one request to
// the record of another, as a writer of the database could.
func TestSwappedRecordsAreDetected(t *testing.T) {
	ring, err := httponce.NewRing(httponce.Secret{ID: "a", Bytes: bytes.Repeat([]byte("a"), 32)})
	if err != nil {
		t.Fatal(err)
	}
	onEachForm(t, created, &httponce.Options{Ring: ring}, func(t *testing.T, s *service) {
		s.send("hers", "hers")
		hers, err := s.store.Get(t.Context(), once.Key{Scope: "acme", Operation: "http", ID: "hers"})
		if err != nil {
			t.Fatal(err)
		}
		mine := once.Fence{Key: once.Key{Scope: "acme", Operation: "http", ID: "mine"}, Owner: [16]byte{1}}
		rec, err := s.store.Claim(t.Context(), once.ClaimRequest{Fence: mine, Lease: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		s.eventually("it lapses", func() bool {
			rec, err = s.store.Get(t.Context(), mine.Key)
			return err == nil && rec.Status == once.Unknown
		})
		if err := once.MarkDone(t.Context(), s.store, rec, hers.Outcome, "an intruder"); err != nil {
			t.Fatal(err)
		}
		s.wantProblem(s.send("mine", "mine"), 500, "record-damaged")
		s.wantRuns(1)
	})
}

// TestARejectionLeavesNoRows has a handler that writes through its transaction
// and responds with each kind of status.
func TestARejectionLeavesNoRows(t *testing.T) {
	for status, kept := range map[int]bool{200: true, 204: true, 303: true, 400: false, 402: false, 404: false, 429: false, 500: false} {
		s := &service{t: t, store: memstore.New(nil)}
		server := httptest.NewServer(httponce.HandlerTx(s.store, tenant, func(w http.ResponseWriter, _ *http.Request, tx *memstore.Tx) error {
			tx.Set("row", "written")
			w.WriteHeader(status)
			return nil
		}, nil))
		s.url = server.URL
		for range 2 {
			if a := s.send("k", "1"); a.status != status {
				t.Errorf("%d: %+v", status, a)
			}
			if _, found := s.store.Value("row"); found != kept {
				t.Errorf("%d: the row is there: %v", status, found)
			}
		}
		server.Close()
	}
}
