package httpclients_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// refusing is a store whose claims are refused while a test says so.
type refusing struct {
	*memstore.Store
	refuse func(once.ClaimRequest) (once.Record, error) // nil error and Absent: not refused
}

func (s refusing) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if rec, err := s.refuse(r); err != nil || rec.Status != once.Absent {
		return rec, err
	}
	return s.Store.Claim(ctx, r)
}

// claimedFor claims the key of the request for somebody who dies.
func claimedFor(t *testing.T, s once.Store, d time.Duration) {
	key := once.Key{Scope: "sk_test_1", Operation: "http", ID: "order-1"}
	rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: d})
	if err != nil || rec.Status != once.Running {
		t.Error(rec, err) // in the goroutine of a server
	}
}

// answers are problems of a guard, and whether a client that retries within
// seconds gets its charge after each.
var answers = map[string]struct {
	o       httponce.Options
	before  func(*testing.T, once.Store) // has happened when the first request arrives
	broken  bool                         // the store, until the second request
	retried bool
	code    string // of the error, if it is not retried
}{
	"still running": {o: httponce.Options{Policy: once.Policy{Wait: once.NoWait}, OnUnknown: once.Resend},
		before: func(t *testing.T, s once.Store) { claimedFor(t, s, 300*time.Millisecond) }, retried: true},
	"the store is down":      {broken: true, retried: true},
	"over the rate":          {o: httponce.Options{Limits: httponce.Limits{PerSecond: 2, Burst: 1}}, retried: true},
	"over the rate for long": {o: httponce.Options{Admit: func(once.Key) (func(bool), time.Duration) { return func(bool) {}, time.Hour }}, code: "too-many-requests"},
	"a person has to decide": {o: httponce.Options{Policy: once.Policy{Wait: once.NoWait}},
		before: func(t *testing.T, s once.Store) {
			claimedFor(t, s, time.Nanosecond)
			op := once.Operation[string]{Name: "http", OnUnknown: once.Park, Policy: once.Policy{Wait: once.NoWait}}
			if _, err := once.Do(t.Context(), s, op.For("order-1").In("sk_test_1"), func(context.Context, once.Key) (string, error) { return "", nil }); !errors.Is(err, once.ErrParked) {
				t.Error(err)
			}
		}, code: "outcome-unknown"},
	"another request": {before: func(t *testing.T, s once.Store) {
		op := once.Operation[string]{Name: "http", OnUnknown: once.Park}
		if _, err := once.Do(t.Context(), s, op.For("order-1").In("sk_test_1").Input([]byte("another")), func(context.Context, once.Key) (string, error) { return "", nil }); err != nil {
			t.Error(err)
		}
	}, code: "key-reused"},
	"a weak key": {o: httponce.Options{CheckKey: httponce.RefuseGuessable}, code: "key-malformed"},
}

// retrying are programs that charge 100 with the key order-1, and print the ID
// of the charge or the code of the error.
var retrying = map[string]func(t *testing.T, address string) string{
	"Go": func(t *testing.T, address string) string {
		got, err := newShop(t, "http://"+address).charge(100, "order-1")
		if err != nil {
			return codeOf(err)
		}
		return got.ID
	},
	"JavaScript": program("node", "-e", `require("stripe")`, `
const [host, port] = process.argv[1].split(":")
const stripe = require("stripe")("sk_test_1", {host, port, protocol: "http", maxNetworkRetries: 3})
stripe.charges.create({amount: 100, currency: "eur", source: "tok_visa"}, {idempotencyKey: "order-1"}).then(
	got => console.log(got.id || "taken for data: " + JSON.stringify(got)),
	e => console.log(e.code))`),
	"Python": program("python3", "-c", "import stripe", `
import stripe, sys
client = stripe.StripeClient("sk_test_1", base_addresses={"api": "http://" + sys.argv[1]}, max_network_retries=3)
try:
	print(client.v1.charges.create({"amount": 100, "currency": "eur", "source": "tok_visa"}, {"idempotency_key": "order-1"}).id)
except stripe.StripeError as e:
	print(e.error.code)`),
}

func program(name, flag, has, text string) func(*testing.T, string) string {
	return func(t *testing.T, address string) string {
		if exec.Command(name, flag, has).Run() != nil {
			t.Skipf("needs %s with the package stripe; NODE_PATH and PYTHONPATH say where", name)
		}
		out, err := exec.CommandContext(t.Context(), name, flag, text, address).CombinedOutput()
		if err != nil {
			return fmt.Sprint(err, ": ", string(out))
		}
		return strings.TrimSpace(string(out))
	}
}

// TestStripeRetriesWhatMaySucceed: each of Stripe's clients retries the answers
// after which a retry within seconds may succeed, and no others, and takes none
// for data.
func TestStripeRetriesWhatMaySucceed(t *testing.T) {
	for language, charge := range retrying {
		for name, test := range answers {
			t.Run(language+"/"+name, func(t *testing.T) {
				t.Parallel()
				p, mux := new(payments), http.NewServeMux()
				store := refusing{memstore.New(nil), func(once.ClaimRequest) (once.Record, error) {
					if test.broken && p.arrived.Load() == 1 {
						return once.Record{}, errors.New("connection refused")
					}
					return once.Record{}, nil
				}}
				guarded := httponce.Handler(store, account, p, &test.o)
				var first sync.Once
				mux.Handle("POST /v1/charges", p.lossy(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					first.Do(func() {
						if test.before != nil {
							test.before(t, store)
						}
						if test.o.Limits.Burst > 0 { // use it up
							other := httptest.NewRequest(http.MethodPost, "/v1/charges", nil)
							other.Header = http.Header{"Authorization": r.Header["Authorization"], httponce.KeyHeader: {"other"}}
							guarded.ServeHTTP(httptest.NewRecorder(), other)
							p.charges.Store(0)
						}
					})
					guarded.ServeHTTP(w, r)
				})))
				server := httptest.NewServer(mux)
				defer server.Close()
				got := charge(t, server.Listener.Addr().String())
				if test.retried {
					if got != "ch_1" || p.arrived.Load() < 2 {
						t.Errorf("got %q after %d requests, want the charge after a retry", got, p.arrived.Load())
					}
				} else if got != test.code || p.arrived.Load() != 1 || p.charges.Load() != 0 {
					t.Errorf("got %q after %d requests, want %s after one", got, p.arrived.Load(), test.code)
				}
			})
		}
	}
}

// TestStripeGivesUp: if every retry fails, each client returns an error.
func TestStripeGivesUp(t *testing.T) {
	for language, charge := range retrying {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			store := refusing{memstore.New(nil), func(r once.ClaimRequest) (once.Record, error) {
				return once.Record{Key: r.Key, Status: once.Running, Attempt: 1, LeaseLeft: time.Second, Fingerprint: r.Fingerprint}, nil
			}}
			server := httptest.NewServer(httponce.Handler(store, account, new(payments), &httponce.Options{Policy: once.Policy{Wait: once.NoWait}}))
			defer server.Close()
			want := "in-progress"
			if language == "Go" {
				want = "#in-progress" // in the text: the error is not a *stripe.Error
			}
			if got := charge(t, server.Listener.Addr().String()); !strings.Contains(got, want) || strings.Contains(got, "taken for data") {
				t.Errorf("got %q", got)
			}
		})
	}
}
