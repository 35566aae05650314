package asking

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

const (
	secret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	another = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
)

var loopback = Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, AllowHTTP: true}

type charge struct {
	Charge string `json:"charge"`
}

// charging is the operation of a program that leaves the asking to others.
func charging() *once.Operation[charge] {
	return &once.Operation[charge]{Name: "charge", Lookup: func(context.Context, once.Key) (c charge, happened bool, err error) {
		return c, false, errors.New("once serve asks")
	}}
}

// lost leaves a unit of work unknown.
func lost(t *testing.T, s once.Store, id string) once.Key {
	t.Helper()
	work := charging().Under(once.Key{Scope: "tenant 7", Operation: "pay", ID: id})
	_, err := once.Do(t.Context(), s, work, func(context.Context, once.Key) (c charge, err error) {
		return c, errors.New("the connection broke")
	})
	if !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Fatalf("the outcome is known: %v", err)
	}
	return work.Key()
}

// asked is an operation that is asked about at a server.
func asked(t *testing.T, o Options, answer http.HandlerFunc) Operation {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	by := New(o)
	t.Cleanup(by.Close)
	to, err := by.Endpoint(server.URL+"/hunter2", []string{secret})
	if err != nil {
		t.Fatal(err)
	}
	return Operation{Name: "charge", Endpoint: to}
}

// say answers with a text, in which KEY is the key of the question.
func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		fmt.Fprint(w, strings.ReplaceAll(text, "KEY", q.Key))
	}
}

// hangUp waits until who has asked is gone, which a server sees when it has read the question.
func hangUp(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// typed says that what is written is a page.
type typed struct{ http.ResponseWriter }

func (w typed) Write(b []byte) (int, error) {
	w.Header().Set("Content-Type", "text/html")
	return w.ResponseWriter.Write(b)
}

// sweep has a reconciler ask once, and returns what has become of the record.
func sweep(t *testing.T, s once.Store, op Operation, k once.Key) once.Record {
	t.Helper()
	r := reconcile.Reconciler{Store: s, Operations: []reconcile.Operation{reconcile.Of(op.Declared(s))}}
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	rec, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestAnswersDecide(t *testing.T) {
	for answer, test := range map[string]struct {
		change func(*Operation)
		want   once.Status
		body   string
	}{
		`{"answer":"done","key":"KEY","result":{"charge": "ch_1"}}`:  {nil, once.Done, `{"charge":"ch_1"}`},
		`{"answer":"done","key":"KEY","result":null,"note":"empty"}`: {nil, once.Done, "null"},
		`{"answer":"rejected","key":"KEY","result":{"charge":"no"}}`: {nil, once.Done, `{"charge":"no"}`},
		`{"answer":"not_found","key":"KEY"}`:                         {nil, once.Absent, ""},
		` {"key":"KEY" , "answer":"not_found"} `: {
			func(o *Operation) { o.SettleTime = time.Hour }, once.Unknown, ""},
		`{"key":"KEY","answer":"not_found"}`: {
			func(o *Operation) { o.KeyValidFor = time.Nanosecond }, once.Parked, ""},
		`{"answer":"pending","key":"KEY"}`: {nil, once.Unknown, ""},
		`{"answer":"unknown","key":"KEY"}`: {nil, once.Unknown, ""},
	} {
		t.Run(answer, func(t *testing.T) {
			s, op := memstore.New(nil), asked(t, loopback, say(answer))
			if test.change != nil {
				test.change(&op)
			}
			k := lost(t, s, "7")
			rec, err := s.Get(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			rec.Key = k
			found := op.Find(t.Context(), s, rec)
			if found.Settlement.Status != test.want {
				t.Errorf("it would become %v, want %v (%s)", found.Settlement.Status, test.want, found.Why)
			}
			if now, err := s.Get(t.Context(), k); err != nil || now.Status != once.Unknown {
				t.Errorf("Find has changed it: %v %v", now.Status, err)
			}
			rec = sweep(t, s, op, k)
			if rec.Status != test.want || string(rec.Outcome.Body) != test.body ||
				rec.Outcome.Rejected != strings.Contains(answer, "rejected") {
				t.Errorf("it is %v with %+v, want %v", rec.Status, rec.Outcome, test.want)
			}
		})
	}
}

// Whatever is not an answer in all its parts leaves the record as it is, and no error shows the path of the URL.
func TestNoAnswerDecidesNothing(t *testing.T) {
	texts := map[string]string{
		"empty":            "",
		"no object":        `"done"`,
		"no key":           `{"answer":"not_found"}`,
		"another key":      `{"answer":"not_found","key":"18c4d8cc-b43c-84e0-b355-dd79e8ff02f1"}`,
		"a null key":       `{"answer":"not_found","key":null}`,
		"no answer":        `{"key":"KEY"}`,
		"another answer":   `{"answer":"gone","key":"KEY"}`,
		"capitals":         `{"answer":"NOT_FOUND","key":"KEY"}`,
		"a field too many": `{"answer":"not_found","key":"KEY","retry":1}`,
		"two answers":      `{"answer":"pending","key":"KEY","answer":"not_found"}`,
		"in two spellings": `{"answer":"not_found","Answer":"done","key":"KEY"}`,
		"no result":        `{"answer":"done","key":"KEY"}`,
		"a result of none": `{"answer":"not_found","key":"KEY","result":{}}`,
		"answer no string": `{"answer":1,"key":"KEY"}`,
		"note no string":   `{"answer":"not_found","key":"KEY","note":{}}`,
		"result no JSON":   `{"answer":"done","key":"KEY","result":{charge:1}}`,
		"cut off":          `{"answer":"not_found","key":"KEY"`,
		"two objects":      `{"answer":"not_found","key":"KEY"}{"answer":"not_found","key":"KEY"}`,
		"not UTF-8":        "{\"answer\":\"done\",\"key\":\"KEY\",\"result\":\"\xff\"}",
		"a long end":       `{"answer":"not_found","key":"KEY"}` + strings.Repeat(" ", maxAnswer),
		"huge":             `{"answer":"done","key":"KEY","result":"` + strings.Repeat("x", maxAnswer) + `"}`,
	}
	servers := make(map[string]http.HandlerFunc)
	for what, text := range texts {
		servers[what] = say(text)
	}
	free := `{"answer":"not_found","key":"KEY"}`
	for _, status := range []int{201, 202, 204, 206, 301, 400, 401, 404, 409, 410, 429, 500, 503} {
		servers[fmt.Sprint(status)] = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			if status != http.StatusNoContent {
				say(free)(w, r)
			}
		}
	}
	servers["a page"] = func(w http.ResponseWriter, r *http.Request) {
		say(free)(typed{w}, r)
	}
	servers["slow"] = func(_ http.ResponseWriter, r *http.Request) { hangUp(r) }
	servers["slow in the middle"] = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"answer":`)
		_ = http.NewResponseController(w).Flush()
		hangUp(r)
	}
	servers["gone"] = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	servers["another protocol"] = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "x")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}
	elsewhere := httptest.NewServer(say(free))
	defer elsewhere.Close()
	servers["a redirect"] = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", elsewhere.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
	for what, server := range servers {
		t.Run(what, func(t *testing.T) {
			o := loopback
			if strings.HasPrefix(what, "slow") {
				o.Timeout = 100 * time.Millisecond
			}
			s, op := memstore.New(nil), asked(t, o, server)
			k := lost(t, s, "7")
			if rec := sweep(t, s, op, k); rec.Status != once.Unknown {
				t.Errorf("it is %v: %+v", rec.Status, rec)
			}
			rec, _ := s.Get(t.Context(), k)
			rec.Key = k
			found := op.Find(t.Context(), s, rec)
			if found.Answer.Kind != "" || found.Settlement.Status != once.Unknown || found.Why == "" || strings.Contains(found.Why, "hunter2") {
				t.Errorf("it is found to be %+v", found)
			}
		})
	}
}

// Each question is signed like a webhook, with a new ID, and has all that a
// receiver may need.
func TestTheQuestion(t *testing.T) {
	s := memstore.New(nil)
	k := lost(t, s, "7")
	ids := make(map[string]bool)
	op := asked(t, loopback, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := webhookbroker.Verify([]string{another, secret}, r.Header, body, 0)
		if err != nil {
			t.Error(err)
			return
		}
		ids[m.ID] = true
		var q map[string]any
		if err := json.Unmarshal(body, &q); err != nil {
			t.Error(err)
		}
		age, _ := q["age_seconds"].(float64)
		since, ok := q["unknown_seconds"].(float64)
		delete(q, "age_seconds")
		delete(q, "unknown_seconds")
		want := map[string]any{"question": "outcome", "scope": "tenant 7", "operation": "pay/charge", "id": "7",
			"key": k.String(), "attempt": 1.0}
		if fmt.Sprint(q) != fmt.Sprint(want) || age <= 0 || !ok || since < 0 || r.Method != "POST" {
			t.Errorf("the question is %v, %v, %v, want %v", q, age, since, want)
		}
		if _, err := webhookbroker.Verify([]string{another}, r.Header, body, 0); !errors.Is(err, webhookbroker.ErrUnverified) {
			t.Errorf("who has another secret has %v", err)
		}
		http.Error(w, "later", http.StatusServiceUnavailable)
	})
	for range 2 {
		sweep(t, s, op, k)
	}
	if len(ids) != 2 {
		t.Errorf("two questions had the IDs %v", ids)
	}
}

// A result that the operation cannot read is kept all the same: its callers get an error, and the work does not run again.
func TestAResultOfAnotherType(t *testing.T) {
	s, op := memstore.New(nil), asked(t, loopback, say(`{"answer":"done","key":"KEY","result":"a text, and no object"}`))
	k := lost(t, s, "7")
	if rec := sweep(t, s, op, k); rec.Status != once.Done {
		t.Fatalf("it is %v", rec.Status)
	}
	_, err := once.Do(t.Context(), s, charging().Under(once.Key{Scope: k.Scope, Operation: "pay", ID: k.ID}),
		func(context.Context, once.Key) (c charge, err error) {
			t.Error("it has run again")
			return c, nil
		})
	if !errors.Is(err, once.ErrOutcomeUnavailable) {
		t.Errorf("the caller gets %v", err)
	}
}

// While the question is on its way, the owner says what has happened, or the next attempt begins: the answer is too late.
func TestTheRecordMovesOnMeanwhile(t *testing.T) {
	for _, answer := range []string{`{"answer":"not_found","key":"KEY"}`, `{"answer":"done","key":"KEY","result":{"charge":"ch_late"}}`} {
		s := memstore.New(nil)
		k := lost(t, s, "7")
		rec, err := s.Get(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		op := asked(t, loopback, func(w http.ResponseWriter, r *http.Request) {
			set := once.Settlement{Fence: once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Done,
				Outcome: once.Outcome{Body: []byte(`{"charge":"ch_1"}`), ContentType: "application/json"}, KeepOutcome: time.Hour, KeepKey: time.Hour}
			if err := s.Settle(t.Context(), set); err != nil {
				t.Error(err)
			}
			say(answer)(w, r)
		})
		if rec := sweep(t, s, op, k); rec.Status != once.Done || string(rec.Outcome.Body) != `{"charge":"ch_1"}` {
			t.Errorf("%s made it %v with %s", answer, rec.Status, rec.Outcome.Body)
		}
	}
}

// A not_found says nothing any more once the key is not honoured: the record may have waited for its turn until then, or
// the answer may have taken until then.
func TestTheKeyIsForgottenMeanwhile(t *testing.T) {
	s := memstore.New(nil)
	k := lost(t, s, "7")
	rec, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	rec.Key = k
	op := asked(t, loopback, say(`{"answer":"not_found","key":"KEY"}`))
	op.KeyValidFor = rec.Age // when it was listed, it was honoured still
	if found := op.Find(t.Context(), s, rec); found.Settlement.Status != once.Parked || found.Record.Age <= rec.Age {
		t.Errorf("it would become %v (%s)", found.Settlement.Status, found.Why)
	}

	const valid = 500 * time.Millisecond
	for _, find := range []func(Operation, once.Key) once.Status{
		func(op Operation, k once.Key) once.Status {
			return op.Find(t.Context(), s, once.Record{Key: k}).Settlement.Status
		},
		func(op Operation, k once.Key) once.Status { return sweep(t, s, op, k).Status },
	} {
		k := lost(t, s, "8")
		op := asked(t, loopback, func(w http.ResponseWriter, r *http.Request) {
			for {
				if now, err := s.Get(t.Context(), k); err != nil || now.Age > valid {
					break
				}
			}
			say(`{"answer":"not_found","key":"KEY"}`)(w, r)
		})
		op.KeyValidFor = valid
		if status := find(op, k); status == once.Absent {
			t.Error("it is free")
		}
		s = memstore.New(nil)
	}
}

// What has moved on while it waited for its turn is not asked about.
func TestWhatIsKnownByNowIsNotAskedAbout(t *testing.T) {
	s := memstore.New(nil)
	k := lost(t, s, "7")
	rec, err := s.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	rec.Key = k
	if err := once.MarkDone(t.Context(), s, rec, once.Outcome{Omitted: true}, "seen at the provider"); err != nil {
		t.Fatal(err)
	}
	op := asked(t, loopback, func(http.ResponseWriter, *http.Request) { t.Error("it was asked about") })
	if found := op.Find(t.Context(), s, rec); found.Settlement.Status != once.Unknown || found.Why != "not asked: it is now done" {
		t.Errorf("it is found to be %+v", found)
	}
}

func TestEndpointsThatCannotBeAsked(t *testing.T) {
	by := New(Options{})
	for url, secrets := range map[string][]string{
		"":                                   {secret},
		"http://shop.example/hunter2":        {secret},
		"ftp://shop.example/hunter2":         {secret},
		"https://u:hunter2@shop.example/":    {secret},
		"https://shop.example/hunter2":       nil,
		"https://shop.example/hunter2?again": {"whsec_hunter2"},
	} {
		if _, err := by.Endpoint(url, secrets); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s with %v: %v", url, secrets, err)
		}
	}
}

// An address that is not public is not connected to, whatever the name says.
func TestLoopbackIsNotAsked(t *testing.T) {
	s := memstore.New(nil)
	op := asked(t, Options{AllowHTTP: true}, func(http.ResponseWriter, *http.Request) { t.Error("it was connected to") })
	k := lost(t, s, "7")
	if rec := sweep(t, s, op, k); rec.Status != once.Unknown {
		t.Errorf("it is %v", rec.Status)
	}
}
