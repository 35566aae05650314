package httpclients_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
	stripe "github.com/stripe/stripe-go/v82"
)

// payments is a server with the API for charges of Stripe, on a network that
// loses replies.
type payments struct {
	charges atomic.Int64 // that were made
	seen    sync.Map     // keys that have arrived
	arrived atomic.Int64 // requests
	lose    atomic.Int64 // how many replies are lost
	cut     atomic.Int64 // how many requests are lost
	status  atomic.Int64 // what is answered instead of a charge
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := p.charges.Add(1)
	if status := p.status.Load(); status != 0 {
		http.Error(w, "no", int(status))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"id": fmt.Sprint("ch_", n), "object": "charge", "amount": json.Number(r.FormValue("amount")), "currency": r.FormValue("currency")})
}

// account returns the caller by its secret key.
func account(r *http.Request) (string, error) {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", errors.New("no secret key")
	}
	return key, nil
}

// lossy loses requests and replies like a network. The client sees its
// connection end.
func (p *payments) lossy(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.arrived.Add(1)
		p.seen.Store(r.Header.Get(httponce.KeyHeader), true)
		if p.cut.Add(-1) >= 0 {
			panic(http.ErrAbortHandler)
		}
		if p.lose.Add(-1) >= 0 {
			h.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	})
}

func (p *payments) keys() (n int) {
	p.seen.Range(func(any, any) bool { n++; return true })
	return n
}

// shop uses Stripe's client with an API key.
type shop struct {
	t        *testing.T
	backends *stripe.Backends
	account  string
}

func (s shop) charge(amount int64, key string) (*stripe.Charge, error) {
	p := &stripe.ChargeCreateParams{Amount: stripe.Int64(amount), Currency: stripe.String("eur"), Source: &stripe.PaymentSourceSourceParams{Token: stripe.String("tok_visa")}}
	if key != "" {
		p.SetIdempotencyKey(key)
	}
	return stripe.NewClient(s.account, stripe.WithBackends(s.backends)).V1Charges.Create(s.t.Context(), p)
}

func newPayments(t *testing.T, o *httponce.Options) (*payments, shop) {
	p := new(payments)
	mux := http.NewServeMux()
	mux.Handle("POST /v1/charges", p.lossy(httponce.Handler(memstore.New(nil), account, p, o)))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return p, newShop(t, server.URL)
}

func newShop(t *testing.T, url string) shop {
	return shop{t, &stripe.Backends{API: stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: stripe.String(url), MaxNetworkRetries: stripe.Int64(3), LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull}})}, "sk_test_1"}
}

// codeOf returns the code of an error of the client, or else its text.
func codeOf(err error) string {
	var refused *stripe.Error
	if errors.As(err, &refused) {
		return string(refused.Code)
	}
	return err.Error()
}

// TestStripeRetries lets the client of Stripe retry with its own keys.
func TestStripeRetries(t *testing.T) {
	for name, lose := range map[string]func(*payments){
		"nothing lost":      func(*payments) {},
		"a request lost":    func(p *payments) { p.cut.Store(1) },
		"two replies lost":  func(p *payments) { p.lose.Store(2) },
		"one and the other": func(p *payments) { p.cut.Store(1); p.lose.Store(1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, client := newPayments(t, &httponce.Options{Required: true, CheckKey: httponce.RefuseGuessable})
			lose(p)
			lossy := p.lose.Load() > 0
			got, err := client.charge(4999, "")
			if err != nil || got.ID != "ch_1" || got.Amount != 4999 {
				t.Fatalf("%+v, %v", got, err)
			}
			if replayed := got.LastResponse.Header.Get(httponce.ReplayedHeader) == "true"; replayed != lossy {
				t.Errorf("replayed: %v", replayed)
			}
			if p.charges.Load() != 1 || p.keys() != 1 {
				t.Errorf("%d charges under %d keys", p.charges.Load(), p.keys())
			}
			if again, err := client.charge(4999, ""); err != nil || again.ID != "ch_2" {
				t.Errorf("a new charge: %+v, %v", again, err)
			}
		})
	}
}

// TestStripeKeys has the user of the client set the key.
func TestStripeKeys(t *testing.T) {
	p, client := newPayments(t, nil)
	first, err := client.charge(100, "order-1")
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.charge(100, "order-1")
	if err != nil || again.ID != first.ID || again.LastResponse.Header.Get(httponce.ReplayedHeader) != "true" {
		t.Errorf("%+v, %v", again, err)
	}
	arrived := p.arrived.Load()
	var refused *stripe.Error
	if got, err := client.charge(200, "order-1"); !errors.As(err, &refused) || refused.Type != stripe.ErrorTypeIdempotency || refused.Code != "key-reused" ||
		refused.HTTPStatusCode != 422 || !strings.HasPrefix(refused.Msg, "Idempotency-Key was used for another request. ") || !strings.HasSuffix(refused.DocURL, "#key-reused") {
		t.Errorf("another amount under the same key: %+v, %v", got, err)
	}
	if again := p.arrived.Load() - arrived; again != 1 {
		t.Errorf("the client sent it %d times, in vain", again)
	}
	other := client
	other.account = "sk_test_2"
	if hers, err := other.charge(100, "order-1"); err != nil || hers.ID == first.ID {
		t.Errorf("another account under the same key: %+v, %v", hers, err)
	}
	if p.charges.Load() != 2 {
		t.Errorf("%d charges", p.charges.Load())
	}
}

// TestStripeCrowd races with one key, against a server whose repeats wait and
// one that refuses them.
func TestStripeCrowd(t *testing.T) {
	for _, o := range []*httponce.Options{nil, {Policy: once.Policy{Wait: once.NoWait}}} {
		p, client := newPayments(t, o)
		var all sync.WaitGroup
		for range 64 {
			all.Add(1)
			go func() {
				defer all.Done()
				got, err := client.charge(100, "order-1")
				for isInProgress(err) { // after three retries, on a busy machine
					got, err = client.charge(100, "order-1")
				}
				if err != nil || got.ID != "ch_1" {
					t.Errorf("%+v, %v", got, err)
				}
			}()
		}
		all.Wait()
		if p.charges.Load() != 1 {
			t.Errorf("%d charges", p.charges.Load())
		}
	}
}

func isInProgress(err error) bool {
	return err != nil && strings.Contains(err.Error(), "#in-progress")
}

// TestStripeUnknown has a handler that fails with an unknown outcome. The
// client retries the 500 and returns the problem that follows. The handler does
// not run again.
func TestStripeUnknown(t *testing.T) {
	p, client := newPayments(t, nil)
	p.status.Store(500)
	if _, err := client.charge(100, ""); err == nil || !strings.Contains(err.Error(), "#outcome-unknown") || p.arrived.Load() != 2 {
		t.Errorf("%v, after %d requests", err, p.arrived.Load())
	}
	if p.charges.Load() != 1 || p.keys() != 1 {
		t.Errorf("it ran %d times under %d keys", p.charges.Load(), p.keys())
	}
}

// otherClients are programs that charge 100 and then 200 under one key with
// Stripe's client for their language, and print the error of the second.
var otherClients = map[string]struct{ program, flag, has, charge string }{
	"JavaScript": {"node", "-e", `require("stripe")`, `
const [host, port] = process.argv[1].split(":")
const stripe = require("stripe")("sk_test_1", {host, port, protocol: "http", maxNetworkRetries: 1})
const charge = amount => stripe.charges.create({amount, currency: "eur", source: "tok_visa"}, {idempotencyKey: "order-1"})
charge(100).then(() => charge(200)).then(
	got => console.log("taken for data:", JSON.stringify(got)),
	e => console.log(e.rawType, e.code, e.statusCode, e.message))`},
	"Python": {"python3", "-c", "import stripe", `
import stripe, sys
client = stripe.StripeClient("sk_test_1", base_addresses={"api": "http://" + sys.argv[1]}, max_network_retries=1)
def charge(amount):
	return client.v1.charges.create({"amount": amount, "currency": "eur", "source": "tok_visa"}, {"idempotency_key": "order-1"})
charge(100)
try:
	print("taken for data:", charge(200))
except stripe.StripeError as e:
	print(e.error.type, e.error.code, e.http_status, e.user_message)`},
}

// TestStripeInOtherLanguages: a refused request is an error for each of
// Stripe's clients. The one for JavaScript looks only at the document.
func TestStripeInOtherLanguages(t *testing.T) {
	for language, c := range otherClients {
		t.Run(language, func(t *testing.T) {
			if exec.Command(c.program, c.flag, c.has).Run() != nil {
				t.Skipf("needs %s with the package stripe; NODE_PATH and PYTHONPATH say where", c.program)
			}
			mux, p := http.NewServeMux(), new(payments)
			mux.Handle("POST /v1/charges", httponce.Handler(memstore.New(nil), account, p, nil))
			server := httptest.NewServer(mux)
			defer server.Close()
			out, err := exec.CommandContext(t.Context(), c.program, c.flag, c.charge, server.Listener.Addr().String()).CombinedOutput()
			if want := "idempotency_error key-reused 422 Idempotency-Key was used for another request."; err != nil || !strings.HasPrefix(string(out), want) {
				t.Errorf("%v: %s", err, out)
			}
			if p.charges.Load() != 1 {
				t.Errorf("%d charges", p.charges.Load())
			}
		})
	}
}
