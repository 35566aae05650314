package httponce

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

func everybody(*http.Request) (string, error) { return "everybody", nil }

// The two ends together: the server has done the work when the answer is lost.
func TestBothEndsMakeOneOfTwoAttempts(t *testing.T) {
	ran, attempts := make(chan bool, 9), make(chan bool, 9)
	guarded := Handler(memstore.New(nil), everybody, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran <- true
		w.WriteHeader(http.StatusCreated)
		io.Copy(w, r.Body)
	}), nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if attempts <- true; len(attempts) == 1 {
			guarded.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		guarded.ServeHTTP(w, r)
	}))
	defer server.Close()
	resp, err := clientOf(&Transport{}).Do(post(t, t.Context(), server.URL, plain{strings.NewReader("pay")}))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusCreated || string(body) != "pay" || !Replayed(resp) || Attempts(resp) != 2 || len(ran) != 1 {
		t.Errorf("%s %q, replayed %v, after %d attempts; the handler ran %d times; %v", resp.Status, body, Replayed(resp), Attempts(resp), len(ran), err)
	}
}

// The client abandons the first attempt while the server works. The second gets
// a Retry-After, and the third the response.
func TestAnAttemptThatIsStillAtWorkIsWaitedFor(t *testing.T) {
	ran, conflicts := make(chan bool, 9), make(chan bool, 9)
	release, recorded := make(chan struct{}), make(chan struct{})
	guarded := Handler(memstore.New(nil), everybody, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran <- true
		<-release
	}), &Options{Policy: once.Policy{Wait: once.NoWait}})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		guarded.ServeHTTP(w, r)
		if w.Header().Get("Retry-After") == "" && w.Header().Get(ReplayedHeader) == "" {
			close(recorded)
		}
	}))
	defer server.Close()
	patient := &http.Transport{ResponseHeaderTimeout: 200 * time.Millisecond}
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		resp, err := patient.RoundTrip(req)
		if err == nil && resp.StatusCode == http.StatusConflict {
			conflicts <- true
			close(release)
			<-recorded
		}
		return resp, err
	})
	resp := send(t, clientOf(&Transport{Base: base}), post(t, t.Context(), server.URL, nil))
	if resp.StatusCode != 200 || !Replayed(resp) || Attempts(resp) != 3 || len(ran) != 1 || len(conflicts) != 1 {
		t.Errorf("%s, Retry-After %q, replayed %v, after %d attempts and %d conflicts; the handler ran %d times",
			resp.Status, resp.Header.Get("Retry-After"), Replayed(resp), Attempts(resp), len(conflicts), len(ran))
	}
}

func TestAnotherRequestUnderTheSameKeyIsRefusedOnce(t *testing.T) {
	server := httptest.NewServer(Handler(memstore.New(nil), everybody, http.NotFoundHandler(), nil))
	defer server.Close()
	ctx, client := WithKey(t.Context(), "order-1"), clientOf(&Transport{})
	if resp := send(t, client, post(t, ctx, server.URL+"/authorize", nil)); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
	if resp := send(t, client, post(t, ctx, server.URL+"/capture", nil)); resp.StatusCode != 422 || Attempts(resp) != 1 {
		t.Errorf("%s after %d attempts", resp.Status, Attempts(resp))
	}
}

// A guarded handler that calls on another server passes its own name on.
func TestTheNameOfAGuardedHandlerGoesOn(t *testing.T) {
	next, client := newPeer(t, 503), clientOf(&Transport{})
	server := httptest.NewServer(Handler(memstore.New(nil), everybody, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		send(t, client, post(t, r.Context(), next.URL, nil))
	}), nil))
	defer server.Close()
	send(t, clientOf(&Transport{}), post(t, WithKey(t.Context(), "order-1"), server.URL, nil))
	want := `"` + once.Key{Scope: "everybody", Operation: "http", ID: "order-1"}.String() + `"`
	if all := next.all(); len(all) != 2 || all[0].key != want || all[1].key != want {
		t.Errorf("%+v, want twice the key %s", all, want)
	}
}
