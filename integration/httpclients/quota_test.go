package httpclients_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/memstore"
)

// direct calls a handler without a network, so that a test can fake time.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

func send(t *testing.T, via http.RoundTripper, key string) (status int, replayed bool, after string) {
	t.Helper()
	r, err := http.NewRequestWithContext(httponce.WithKey(t.Context(), key), http.MethodPost, "http://shop.test/payments", strings.NewReader("1"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer a")
	r.Header.Set(httponce.KeyHeader, key)
	resp, err := via.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode, httponce.Replayed(resp), resp.Header.Get("Retry-After")
}

// forms are both ways to guard payments.
var forms = map[string]func(*memstore.Store, *httponce.Options) http.Handler{
	"Handler": func(s *memstore.Store, o *httponce.Options) http.Handler {
		return httponce.Handler(s, account, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }), o)
	},
	"HandlerTx": func(s *memstore.Store, o *httponce.Options) http.Handler {
		return httponce.HandlerTx(s, account, func(w http.ResponseWriter, _ *http.Request, _ *memstore.Tx) error {
			w.WriteHeader(201)
			return nil
		}, o)
	},
}

func keysIn(t *testing.T, s *memstore.Store) int {
	t.Helper()
	page, err := s.List(t.Context(), once.RecordQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Records)
}

// A caller fills its quota, gets replays of its responses, and can use new keys
// once its keys are forgotten.
func TestQuotaOverHTTP(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New(nil)
				quota := &janitor.Quota{Store: store, Limit: janitor.Limit{Keys: 10}, Every: time.Minute}
				guarded := form(store, &httponce.Options{Admit: quota.Admit, Policy: once.Policy{KeepOutcome: time.Hour, KeepKey: time.Hour}})
				for i := range 10 {
					if status, _, _ := send(t, direct{guarded}, fmt.Sprint(i)); status != 201 {
						t.Errorf("%d: %d", i, status)
					}
				}
				for i := range 20 {
					want := 201
					if i >= 10 {
						want = 429
					}
					if status, replayed, after := send(t, direct{guarded}, fmt.Sprint(i)); status != want || replayed != (i < 10) || (after != "") != (i >= 10) {
						t.Errorf("%d: %d, replayed %t, Retry-After %q", i, status, replayed, after)
					}
				}
				if n := keysIn(t, store); n != 10 {
					t.Errorf("%d keys are there, want 10", n)
				}
				time.Sleep(time.Hour)
				if err := quota.Count(t.Context()); err != nil {
					t.Fatal(err)
				}
				if status, replayed, _ := send(t, direct{guarded}, "19"); status != 201 || replayed {
					t.Errorf("when there is room: %d, replayed %t", status, replayed)
				}
			})
		})
	}
}

// 64 clients ask for the last place. One gets it, and the others leave no
// record.
func TestTheLastPlaceOverHTTP(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				store := memstore.New(nil)
				quota := &janitor.Quota{Store: store, Limit: janitor.Limit{Keys: 2}}
				guarded := form(store, &httponce.Options{Admit: quota.Admit})
				send(t, direct{guarded}, "first")
				var all sync.WaitGroup
				answers, begin := make(chan int, 64), make(chan struct{})
				for i := range 64 {
					all.Go(func() {
						<-begin
						status, _, _ := send(t, direct{guarded}, fmt.Sprint(i))
						answers <- status
					})
				}
				close(begin)
				all.Wait()
				close(answers)
				got := make(map[int]int)
				for status := range answers {
					got[status]++
				}
				if got[201] != 1 || got[429] != 63 || keysIn(t, store) != 2 {
					t.Fatalf("answers: %v, keys: %d", got, keysIn(t, store))
				}
			}
		})
	}
}

// Transport retries, and succeeds when the next count has made room.
func TestTransportWaitsForAQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(nil)
		quota := &janitor.Quota{Store: store, Limit: janitor.Limit{Keys: 1}, Every: time.Minute}
		guarded := forms["Handler"](store, &httponce.Options{Admit: quota.Admit, Policy: once.Policy{KeepOutcome: time.Minute / 2, KeepKey: time.Minute / 2}})
		send(t, direct{guarded}, "first")
		if err := quota.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
		go quota.Run(t.Context())
		begun := time.Now()
		status, replayed, _ := send(t, &httponce.Transport{Base: direct{guarded}, Budget: 10 * time.Minute}, "second")
		if took := time.Since(begun); status != 201 || replayed || took < time.Minute || took > 5*time.Minute {
			t.Errorf("%d after %v, replayed %t", status, took, replayed)
		}
	})
}
