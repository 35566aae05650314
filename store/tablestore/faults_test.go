package tablestore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/tablestore"
)

var errLost = errors.New("the connection is lost")

// line is a policy that decides about each request of a client.
type line struct {
	mu       sync.Mutex
	requests int
	fault    func(n int, req *policy.Request) (*http.Response, error) // n counts from 1
}

func (l *line) Do(req *policy.Request) (*http.Response, error) {
	l.mu.Lock()
	l.requests++
	n, fault := l.requests, l.fault
	l.mu.Unlock()
	if fault == nil {
		return req.Next()
	}
	return fault(n, req)
}

// set sets the fault, and begins to count.
func (l *line) set(fault func(int, *policy.Request) (*http.Response, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests, l.fault = 0, fault
}

func (l *line) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func loseRequest(*policy.Request) (*http.Response, error) { return nil, errLost }

func loseReply(req *policy.Request) (*http.Response, error) {
	if resp, err := req.Next(); err == nil {
		_ = resp.Body.Close()
	}
	return nil, errLost
}

// isCommit reports whether a request is a transaction with a user's entity.
func isCommit(req *policy.Request) bool {
	if !strings.HasSuffix(req.Raw().URL.Path, "$batch") {
		return false
	}
	body, err := io.ReadAll(req.Body())
	_ = req.RewindBody()
	return err == nil && strings.Contains(string(body), `"Name"`)
}

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

// inOne puts all keys into the partition of the rows that tests write.
func inOne(once.Key) string { return "all" }

func open(c *aztables.Client) *tablestore.Store {
	return tablestore.New(c, &tablestore.Options{Partition: inOne})
}

// Whichever request or reply of a call is lost, the work has one effect, and the
// answer is that of the run that had it.
func TestLostRequestsAndReplies(t *testing.T) {
	l := &line{}
	c := table(t, l)
	for fault, lose := range map[string]func(*policy.Request) (*http.Response, error){"request": loseRequest, "reply": loseReply} {
		for _, claimFirst := range []bool{false, true} {
			s := tablestore.New(c, &tablestore.Options{Partition: inOne, ClaimFirst: claimFirst})
			_, err := s.Get(t.Context(), once.Key{Operation: "pay", ID: "0"}) // learns the time
			must(t, err)
			for lost := 1; ; lost++ {
				id := fmt.Sprint(fault, " ", claimFirst, " ", lost)
				l.set(func(n int, req *policy.Request) (*http.Response, error) {
					if n == lost {
						return lose(req)
					}
					return req.Next()
				})
				quick := *pay
				quick.Policy.Lease = 100 * time.Millisecond
				quick.OnUnknown = once.Resend
				answers := make(map[string]string)
				call := func() (string, error) {
					return once.DoTx(t.Context(), s, quick.For(id), func(ctx context.Context, tx *tablestore.Tx) (string, error) {
						row := fmt.Sprint(time.Now().UnixNano())
						answers[row] = "run " + row
						return answers[row], tx.Write(effect("all", row, id))
					})
				}
				got, err := call()
				for end := time.Now().Add(testenv.Patience); err != nil && time.Now().Before(end); {
					got, err = call()
				}
				requests := l.count()
				l.set(nil)
				if n, countErr := count(t.Context(), c, id); err != nil || countErr != nil || n != 1 {
					t.Errorf("%s: DoTx returned %q, %v with %d effects", id, got, err, n)
				}
				if again, err := call(); again != got || err != nil {
					t.Errorf("%s: a repeat returned %q, %v after %q", id, again, err, got)
				}
				if requests < lost {
					break
				}
			}
		}
	}
}

// late is a line on which commits arrive when they are told to.
func late(l *line) (arrive func() error) {
	var held *policy.Request
	done := false
	l.set(func(_ int, req *policy.Request) (*http.Response, error) {
		if !done && isCommit(req) {
			done, held = true, req.Clone(context.WithoutCancel(req.Raw().Context()))
			return nil, errLost
		}
		return req.Next()
	})
	return func() error {
		resp, err := held.Next()
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(body), string(aztables.EntityAlreadyExists)) {
			err = fmt.Errorf("it was answered %s", body)
		}
		return err
	}
}

// The commit arrives while the second run is at work, or after it has failed.
// Whatever happens, what the caller learns is what took place.
func TestALateCommitIsRefused(t *testing.T) {
	l := &line{}
	c := table(t, l)
	s := open(c)
	for _, fails := range []bool{false, true} {
		id := fmt.Sprint("fails ", fails)
		_, err := s.Get(t.Context(), once.Key{Operation: "pay", ID: id})
		must(t, err)
		arrive := late(l)
		no, runs := errors.New("out of stock"), 0
		got, err := once.DoTx(t.Context(), s, pay.For(id), func(_ context.Context, tx *tablestore.Tx) (string, error) {
			must(t, tx.Write(effect("all", fmt.Sprint(id, runs), id)))
			if runs++; runs == 2 {
				if err := arrive(); err != nil {
					t.Errorf("the late commit was not refused: %v", err)
				}
				if fails {
					return "", no
				}
			}
			return fmt.Sprint("run ", runs), nil
		})
		n, countErr := count(t.Context(), c, id)
		must(t, countErr)
		switch {
		case fails && (!errors.Is(err, no) || n != 0), !fails && (err != nil || got != "run 2" || n != 1):
			t.Errorf("%s: DoTx returned %q, %v with %d effects", id, got, err, n)
		}
	}
}

// busy answers like a service that is too busy.
func busy(req *policy.Request) *http.Response {
	return &http.Response{
		StatusCode: http.StatusServiceUnavailable, Status: "503 Server Busy", Request: req.Raw(),
		Header: http.Header{"Retry-After-Ms": {"1"}, "X-Ms-Error-Code": {"ServerBusy"}},
		Body:   io.NopCloser(strings.NewReader(`{"odata.error":{"code":"ServerBusy","message":{"value":"busy"}}}`)),
	}
}

func TestABusyServiceIsWaitedFor(t *testing.T) {
	l := &line{}
	c := table(t, l)
	s := open(c)
	l.set(func(n int, req *policy.Request) (*http.Response, error) {
		if n%3 != 0 {
			return busy(req), nil
		}
		return req.Next()
	})
	enough, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got, err := once.DoTx(enough, s, pay.For("1"), func(_ context.Context, tx *tablestore.Tx) (string, error) {
		return "paid", tx.Write(effect("all", "1", "1"))
	})
	if err != nil || got != "paid" {
		t.Errorf("DoTx returned %q, %v", got, err)
	}
	got, err = once.Do(enough, s, pay.For("2"), func(context.Context, once.Key) (string, error) { return "paid", nil })
	if err != nil || got != "paid" {
		t.Errorf("Do returned %q, %v", got, err)
	}
	l.set(func(_ int, req *policy.Request) (*http.Response, error) { return busy(req), nil })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Get(ctx, pay.For("1").Key()); err == nil || l.count() < 2 {
		t.Errorf("Get at a service that stays busy returned %v after %d requests", err, l.count())
	}
}

// A commit that was applied, although the service has said that it was too busy,
// meets itself.
func TestACommitThatWasBusyIsNoConflict(t *testing.T) {
	l := &line{}
	c := table(t, l)
	s := open(c)
	once503, runs := false, 0
	l.set(func(_ int, req *policy.Request) (*http.Response, error) {
		if once503 || !isCommit(req) {
			return req.Next()
		}
		once503 = true
		if _, err := loseReply(req); err != nil && !errors.Is(err, errLost) {
			return nil, err
		}
		return busy(req), nil
	})
	got, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *tablestore.Tx) (string, error) {
		runs++
		return fmt.Sprint("run ", runs), tx.Write(effect("all", fmt.Sprint(runs), "1"))
	})
	n, countErr := count(t.Context(), c, "1")
	must(t, countErr)
	if err != nil || got != "run 1" || runs != 1 || n != 1 {
		t.Errorf("DoTx returned %q, %v after %d runs with %d effects", got, err, runs, n)
	}

	tx, key := s.Begin(), once.Key{Operation: "pay", ID: "2"}
	_, err = s.ClaimTx(t.Context(), tx, []once.ClaimRequest{{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Hour}})
	must(t, err)
	must(t, tx.Write(effect("all", "2", "2")))
	once503 = false
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrConflict) {
		t.Errorf("Commit returned %v", err)
	}
}

// What a commit returns if it was applied, or may have been, is never a plain
// error.
func TestWhatIsKnownAfterACommit(t *testing.T) {
	l := &line{}
	s := open(table(t, l))
	status := func(code int) func(int, *policy.Request) (*http.Response, error) {
		return func(_ int, req *policy.Request) (*http.Response, error) {
			resp := busy(req)
			resp.StatusCode = code
			return resp, nil
		}
	}
	for name, c := range map[string]struct {
		fault func(int, *policy.Request) (*http.Response, error)
		want  error // nil: nothing was applied
	}{
		"a lost reply":      {func(_ int, r *policy.Request) (*http.Response, error) { return loseReply(r) }, once.ErrOutcomeUnknown},
		"an internal error": {status(http.StatusInternalServerError), once.ErrOutcomeUnknown},
		"a gateway":         {status(http.StatusGatewayTimeout), once.ErrOutcomeUnknown},
		"a request timeout": {status(http.StatusRequestTimeout), once.ErrOutcomeUnknown},
		"an odd response":   {status(http.StatusAccepted), once.ErrOutcomeUnknown},
		"no permission":     {status(http.StatusForbidden), nil},
		"a large body":      {status(http.StatusRequestEntityTooLarge), once.ErrInvalid},
		"a broken request":  {status(http.StatusBadRequest), nil},
	} {
		l.set(nil)
		tx := s.Begin()
		must(t, tx.Write(effect("all", name, name)))
		l.set(c.fault)
		err := tx.Commit(t.Context())
		switch {
		case err == nil, c.want != nil && !errors.Is(err, c.want),
			c.want == nil && (errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrConflict)):
			t.Errorf("%s: Commit returned %v, want %v", name, err, c.want)
		}
	}
	l.set(nil)
	nobody, err := aztables.NewClientWithNoCredential("http://127.0.0.1:1/x/x", nil)
	must(t, err)
	tx := open(nobody).Begin()
	must(t, tx.Write(effect("all", "1", "1")))
	if err := tx.Commit(t.Context()); err == nil || errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("without a server, Commit returned %v", err)
	}
}

// A gateway whose clock is an hour ahead answers in the place of the service.
func TestAGatewayDoesNotTellTheTime(t *testing.T) {
	way := new(line)
	c := table(t, way)
	key := once.Key{Operation: "pay", ID: "1"}
	_, err := tablestore.New(c, nil).Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: 10 * time.Minute})
	must(t, err)
	for _, known := range []bool{true, false} { // the time, before the gateway answers
		other := tablestore.New(c, nil)
		if known {
			_, err = other.Get(t.Context(), key)
			must(t, err)
		}
		way.set(func(_ int, req *policy.Request) (*http.Response, error) {
			header := http.Header{"Date": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, "Content-Type": {"text/html"}}
			return &http.Response{StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
				Body: io.NopCloser(strings.NewReader("<p>Forbidden</p>")), Request: req.Raw()}, nil
		})
		if _, err := other.Get(t.Context(), key); err == nil {
			t.Error("the gateway lets calls pass")
		}
		way.set(nil)
		if rec, err := other.Get(t.Context(), key); err != nil || rec.Status != once.Running || rec.LeaseLeft < 9*time.Minute {
			t.Errorf("the record of a live holder is %v for %v, %v", rec.Status, rec.LeaseLeft, err)
		}
	}
}

// A service whose clock differs from that of the clients: leases last as long as
// they were asked for, and not much longer.
func TestLeasesHoldWhateverTheClocksShow(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		shift := func(_ int, req *policy.Request) (*http.Response, error) {
			resp, err := req.Next()
			if err == nil {
				var date time.Time
				if date, err = http.ParseTime(resp.Header.Get("Date")); err == nil {
					resp.Header.Set("Date", date.Add(ahead).UTC().Format(http.TimeFormat))
				}
			}
			return resp, err
		}
		holder := tablestore.New(table(t, &line{fault: shift}), nil)
		rival := holder
		if ahead != 0 {
			l := &line{fault: shift}
			c := table(t, l)
			holder, rival = tablestore.New(c, nil), tablestore.New(c, nil)
		}
		const lease = 700 * time.Millisecond
		key := once.Key{Operation: "pay", ID: "1"}
		begun := time.Now()
		rec, err := holder.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: lease})
		must(t, err)
		held := time.Now()
		if age := time.Since(rec.Created) + ahead; age < -3*time.Second || age > 3*time.Second {
			t.Errorf("%v ahead: the record was created %v ago", ahead, age)
		}
		testenv.Await(t, "the rival takes over", func() bool {
			rec, err = rival.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{2}, Attempt: 1}, Lease: lease})
			must(t, err)
			return rec.Attempt == 2
		})
		if after := time.Since(held); after < lease || time.Since(begun) > lease+5*time.Second {
			t.Errorf("%v ahead: a lease of %v was taken over after %v", ahead, lease, after)
		}
	}
}

// A service that stays busy is not waited for without end.
func TestWaitingForABusyServiceEnds(t *testing.T) {
	l := &line{}
	s := open(table(t, l))
	s.WaitAtMost(50 * time.Millisecond)
	l.set(func(_ int, req *policy.Request) (*http.Response, error) { return busy(req), nil })
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if _, err := s.Get(ctx, pay.For("1").Key()); err == nil || ctx.Err() != nil || l.count() < 2 || l.count() > 900 {
		t.Errorf("Get returned %v after %d requests, and the context says %v", err, l.count(), ctx.Err())
	}
}

// A call of Forget reads a bounded number of pages, and the next one goes on
// there, until all was found.
func TestForgetGoesOnWhereItStopped(t *testing.T) {
	l := &line{}
	c := table(t, l)
	s := open(c)
	const due = tablestore.MaxPages + 30
	past := aztables.EDMDateTime(time.Now().Add(-time.Hour))
	for n := range due {
		write(t, c, aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: fmt.Sprint("p", n), RowKey: "once-doc-order.1"},
			Properties: map[string]any{"Size": aztables.EDMInt64(0), "Due": past}})
	}
	for n := range tablestore.MaxPages + 30 { // due, damaged, and never deleted
		write(t, c, aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: fmt.Sprint("q", n), RowKey: "once-key-damaged"},
			Properties: map[string]any{"Due": past}})
	}
	write(t, c, aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: "z", RowKey: "once-doc-order.1"},
		Properties: map[string]any{"Size": aztables.EDMInt64(0), "Due": past}})
	pages := 0
	l.set(func(_ int, req *policy.Request) (*http.Response, error) { // pages of one entity
		query := req.Raw().URL.Query()
		if req.Raw().Method == http.MethodGet && query.Has("$top") {
			pages++
			query.Set("$top", "1")
			req.Raw().URL.RawQuery = query.Encode()
		}
		return req.Next()
	})
	total, calls := 0, 0
	for total < due+1 && calls < 10 {
		pages = 0
		n, err := s.Forget(t.Context(), 1000)
		must(t, err)
		if calls++; pages > tablestore.MaxPages {
			t.Errorf("Forget has read %d pages", pages)
		}
		total += n
	}
	if left := entities(t, c, "RowKey eq 'once-doc-order.1'"); total != due+1 || calls < 3 || len(left) != 0 {
		t.Errorf("%d of %d were deleted in %d calls, and %d are left", total, due, calls, len(left))
	}
}
