//go:build go1.25

package oncetest

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/memstore"
)

// shopParts are the parts of a shop. Each test replaces one of them by a mistake.
type shopParts struct {
	order  func(*Instance, *outbox.Outbox[*memstore.Tx]) func(context.Context, string) (string, error)
	charge func(*Instance) inbox.Handler
	bill   func(*Instance, *inbox.Consumer) func(context.Context) error
}

// shop is a service that takes orders, charges them at a bank that honours keys,
// and writes receipts.
func shop(parts shopParts) Service {
	if parts.order == nil {
		parts.order = takeOrder
	}
	if parts.charge == nil {
		parts.charge = chargeOrder
	}
	if parts.bill == nil {
		parts.bill = func(_ *Instance, c *inbox.Consumer) func(context.Context) error { return c.Run }
	}
	return Service{
		Effects: []Effect{{Name: "order"}, {Name: "charge", HonoursKeys: true}, {Name: "receipt"}},
		Start: func(i *Instance) Program {
			box := outbox.New(i.Store(), nil)
			billing := &inbox.Consumer{Name: "billing", Source: i.Queue("billing", "orders"), Handler: parts.charge(i)}
			receipts := &inbox.Consumer{Name: "receipts", Source: i.Log("orders", "receipts"), Handler: inbox.Tx(i.Store(),
				func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
					return i.Row(ctx, tx, "receipt", m.ID)
				})}
			relay := &outbox.Relay{Store: i.Store(), Publisher: i.Publisher()}
			return Program{Run: []func(context.Context) error{parts.bill(i, billing), receipts.Run, relay.Run}, Do: parts.order(i, box)}
		},
	}
}

var orders = &once.Operation[string]{Name: "order"}

// takeOrder puts a message about an order in its transaction. Some are rejected.
func takeOrder(i *Instance, box *outbox.Outbox[*memstore.Tx]) func(context.Context, string) (string, error) {
	return func(ctx context.Context, id string) (string, error) {
		return once.DoTx(ctx, i.Store(), orders.For(id), func(ctx context.Context, tx *memstore.Tx) (string, error) {
			if id[len(id)-1] == '3' {
				return "sold out", once.ErrRejected
			}
			if err := i.Row(ctx, tx, "order", id); err != nil {
				return "", err
			}
			return rand.Text(), box.Put(ctx, tx, orderMessage(id))
		})
	}
}

func orderMessage(id string) *broker.Message {
	return &broker.Message{ID: id, Topic: "orders", Body: []byte(id)}
}

// chargeOrder charges an order with the key of the message.
func chargeOrder(i *Instance) inbox.Handler {
	return charging(i, func(key once.Key) string { return key.String() })
}

func charging(i *Instance, keyOf func(once.Key) string) inbox.Handler {
	op := &once.Operation[string]{OnUnknown: once.Resend}
	return inbox.Do(i.Store(), op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		err := i.Call(ctx, "charge", m.ID, keyOf(key))
		if once.IsDialError(err) {
			err = once.NotDone(inbox.Unavailable(err))
		}
		return "charged", err
	})
}

// lived lets a service live through some days, and returns its year and what was
// found.
func lived(t *testing.T, s Service, days int, seed uint64) (y *year, finding string) {
	t.Helper()
	s.Days, s.Seed = days, seed
	y, err := s.year()
	if err != nil {
		t.Fatal(err)
	}
	y.found = func(text string) { finding = text }
	if held := y.live(t); held != (finding == "") {
		t.Errorf("it held: %v, and this was found: %s", held, finding)
	}
	return y, finding
}

func TestARightServiceLivesThroughAYear(t *testing.T) {
	s := shop(shopParts{})
	s.Days = 100 // examples/year has a whole one
	Year(t, s)
}

func TestARightServiceBreaksNoLawWithAnySeed(t *testing.T) {
	for seed := range uint64(50) {
		if _, finding := lived(t, shop(shopParts{}), 3, seed+1); finding != "" {
			t.Errorf("seed %d: %s", seed+1, finding)
		}
		if _, finding := lived(t, staffed(shopParts{charge: chargeOrPark}), 1, seed+1); finding != "" {
			t.Errorf("with people, seed %d: %s", seed+1, finding)
		}
	}
}

func TestReportSaysWhatHappenedAndWhatHeld(t *testing.T) {
	y, _ := lived(t, shop(shopParts{}), 20, 1)
	report := y.report(time.Second)
	for _, words := range []string{"20 days of 2 instances with seed 1", "All laws held", "80 requests", "were killed", "outages", "copies of messages",
		"order, charge, receipt happened once", "Everything was done"} {
		if !strings.Contains(report, words) {
			t.Errorf("%q is missing:\n%s", words, report)
		}
	}
	if c := y.totals; c.kills == 0 || c.stalls == 0 || c.outages == 0 || c.copied.Load() == 0 || c.faults[sim.After] == 0 || c.faults[sim.Late] == 0 {
		t.Errorf("a kind of fault never happened:\n%s", report)
	}
}

// publishOrder publishes beside the transaction.
func publishOrder(i *Instance, _ *outbox.Outbox[*memstore.Tx]) func(context.Context, string) (string, error) {
	return func(ctx context.Context, id string) (string, error) {
		return once.DoTx(ctx, i.Store(), orders.For(id), func(ctx context.Context, tx *memstore.Tx) (string, error) {
			if errs := i.Publisher().Publish(ctx, []*broker.Message{orderMessage(id)}); errs != nil {
				return "", errs[0]
			}
			return "taken", i.Row(ctx, tx, "order", id)
		})
	}
}

// orderWithoutKey has a new key for each attempt.
func orderWithoutKey(i *Instance, box *outbox.Outbox[*memstore.Tx]) func(context.Context, string) (string, error) {
	return func(ctx context.Context, id string) (string, error) {
		return once.DoTx(ctx, i.Store(), orders.For(rand.Text()), func(ctx context.Context, tx *memstore.Tx) (string, error) {
			if err := i.Row(ctx, tx, "order", id); err != nil {
				return "", err
			}
			return "taken", box.Put(ctx, tx, orderMessage(id))
		})
	}
}

// orderWithAnotherAnswer answers each attempt anew.
func orderWithAnotherAnswer(i *Instance, box *outbox.Outbox[*memstore.Tx]) func(context.Context, string) (string, error) {
	take := takeOrder(i, box)
	return func(ctx context.Context, id string) (string, error) {
		if _, err := take(ctx, id); err != nil {
			return "", err
		}
		return rand.Text(), nil
	}
}

// orderThatIsRejectedLate rejects what it has already written.
func orderThatIsRejectedLate(i *Instance, box *outbox.Outbox[*memstore.Tx]) func(context.Context, string) (string, error) {
	take := takeOrder(i, box)
	return func(ctx context.Context, id string) (string, error) {
		if _, err := take(ctx, id); err != nil {
			return "", err
		}
		return "no", once.ErrRejected
	}
}

// chargeInTx charges in a transaction, without a key.
func chargeInTx(i *Instance) inbox.Handler {
	return inbox.Tx(i.Store(), func(ctx context.Context, _ *memstore.Tx, m *broker.Message) error {
		return i.Call(ctx, "charge", m.ID, "")
	})
}

func chargeWithANewKey(i *Instance) inbox.Handler {
	return charging(i, func(once.Key) string { return rand.Text() })
}

func chargeAndSwallowErrors(i *Instance) inbox.Handler {
	op := &once.Operation[string]{OnUnknown: once.Resend}
	return inbox.Do(i.Store(), op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		_ = i.Call(ctx, "charge", m.ID, key.String())
		return "charged", nil
	})
}

// chargeAnother charges under an ID that no request has.
func chargeAnother(i *Instance) inbox.Handler {
	op := &once.Operation[string]{OnUnknown: once.Resend}
	return inbox.Do(i.Store(), op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		return "charged", i.Call(ctx, "charge", "order "+m.ID, key.String())
	})
}

// ackBeforeCommit is a consumer of its own that acknowledges first.
func ackBeforeCommit(i *Instance, c *inbox.Consumer) func(context.Context) error {
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			_ = consumeWithAckFirst(ctx, i, c.Source)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		return nil
	}
}

func consumeWithAckFirst(ctx context.Context, i *Instance, src broker.Source) error {
	op := &once.Operation[string]{Name: "billing", OnUnknown: once.Resend}
	session, err := src.Open(ctx, 1)
	if err != nil {
		return err
	}
	defer session.Close(context.WithoutCancel(ctx))
	for {
		ds, err := session.Receive(ctx, 1)
		if err != nil {
			return err
		}
		if err := session.Ack(ctx, ds); err != nil {
			return err
		}
		for _, d := range ds {
			_, err := once.Do(ctx, i.Store(), op.For(d.Message.ID), func(ctx context.Context, key once.Key) (string, error) {
				return "charged", i.Call(ctx, "charge", d.Message.ID, key.String())
			})
			if err != nil {
				return err
			}
		}
	}
}

// parking is a bank that honours no keys, and can only be asked by a person.
func parking(i *Instance) inbox.Handler {
	op := &once.Operation[string]{OnUnknown: once.Park}
	return inbox.Do(i.Store(), op, func(ctx context.Context, _ once.Key, m *broker.Message) (string, error) {
		err := i.Call(ctx, "charge", m.ID, "")
		if once.IsDialError(err) {
			err = once.NotDone(inbox.Unavailable(err))
		}
		return "charged", err
	})
}

func TestParkedWorkWaitsForAPerson(t *testing.T) {
	s := shop(shopParts{charge: parking})
	s.Effects[1].HonoursKeys = false
	y, finding := lived(t, s, 40, 1)
	if report := y.report(time.Second); finding != "" || !strings.Contains(report, "wait for a person") {
		t.Error(finding, report)
	}
}

// asking is a bank that honours no keys, and can be asked.
func asking(settle time.Duration) func(*Instance) inbox.Handler {
	return func(i *Instance) inbox.Handler {
		op := &once.Operation[string]{SettleTime: settle, Lookup: func(ctx context.Context, key once.Key) (string, bool, error) {
			found, err := i.Find(ctx, "charge", key.String())
			return "charged", found, err
		}}
		return inbox.Do(i.Store(), op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
			return "charged", i.Call(ctx, "charge", m.ID, key.String())
		})
	}
}

func TestASystemThatCanBeAsked(t *testing.T) {
	s := shop(shopParts{charge: asking(Latest)})
	s.Effects[1].HonoursKeys = false
	if _, finding := lived(t, s, 40, 1); finding != "" {
		t.Error(finding)
	}
	s.Start = shop(shopParts{charge: asking(0)}).Start
	for seed := range uint64(5) { // one late call is enough, and one in hundreds comes at the right time
		if _, finding := lived(t, s, 120, seed+1); strings.Contains(finding, string(lawEffectOnce)) {
			return
		}
	}
	t.Error("an operation without SettleTime was not found")
}

// counter is a service over HTTP. Guarded, it has a key for each request.
func counter(guarded bool) Service {
	op := &once.Operation[string]{Name: "count"}
	return Service{
		Effects: []Effect{{Name: "count"}},
		Request: func(id string) *http.Request {
			r := httptest.NewRequest(http.MethodPost, "/count", strings.NewReader(id))
			r.Header.Set("Idempotency-Key", id)
			return r
		},
		Start: func(i *Instance) Program {
			return Program{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				id, _ := io.ReadAll(r.Body)
				key := rand.Text()
				if guarded {
					key = r.Header.Get("Idempotency-Key")
				}
				text, err := once.DoTx(r.Context(), i.Store(), op.For(key), func(ctx context.Context, tx *memstore.Tx) (string, error) {
					if strings.HasSuffix(key, "2") {
						return "too many", once.ErrRejected
					}
					return "counted", i.Row(ctx, tx, "count", string(id))
				})
				switch {
				case errors.Is(err, once.ErrRejected):
					w.WriteHeader(http.StatusForbidden)
				case err != nil:
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				_, _ = io.WriteString(w, text)
			})}
		},
	}
}

func TestRequestsOverHTTP(t *testing.T) {
	y, finding := lived(t, counter(true), 40, 1)
	if report := y.report(time.Second); finding != "" || strings.Contains(report, " 0 were rejected") {
		t.Error(finding, report)
	}
	if _, finding := lived(t, counter(false), 365, 1); !strings.Contains(finding, string(lawEffectOnce)) {
		t.Errorf("a handler without a guard was not found: %s", finding)
	}
}

// roundTrip is a client.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// retrying is a client that sends a request up to three times, with this key.
func retrying(keyOf func(*http.Request) string) func(http.RoundTripper) http.RoundTripper {
	return func(network http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (w *http.Response, err error) {
			body, err := io.ReadAll(r.Body)
			for n := 0; n < 3 && r.Context().Err() == nil && (w == nil || w.StatusCode >= 500); n++ {
				again := r.Clone(r.Context())
				again.Body = io.NopCloser(strings.NewReader(string(body)))
				again.Header.Set("Idempotency-Key", keyOf(r))
				w, err = network.RoundTrip(again)
			}
			return w, err
		})
	}
}

func TestCustomersSendThroughAClient(t *testing.T) {
	s := counter(true)
	s.Client = retrying(func(r *http.Request) string { return r.Header.Get("Idempotency-Key") })
	y, finding := lived(t, s, 40, 1)
	if r := y.requests["d1r001"]; r.answer == nil || r.answer.text != "200 counted" {
		t.Errorf("the first answer is %v", r.answer)
	}
	if sent := y.totals.sent.Load(); finding != "" || sent <= y.totals.attempts.Load() {
		t.Errorf("%d sent in %d attempts: %s", sent, y.totals.attempts.Load(), finding)
	}
	s.Client = retrying(func(*http.Request) string { return rand.Text() })
	_, finding = lived(t, s, 365, 1)
	if !strings.Contains(finding, string(lawEffectOnce)) || !strings.Contains(finding, "enough:  1 customer, 1 instance") {
		t.Errorf("a client with a new key for each attempt was not found: %s", finding)
	}
}

// joining is a service that takes orders in transactions of its own.
func joining(take func(i *Instance, ctx context.Context, id string, row func(*memstore.Tx) error) (string, error)) Service {
	return Service{
		Effects: []Effect{{Name: "order"}},
		Start: func(i *Instance) Program {
			return Program{Do: func(ctx context.Context, id string) (string, error) {
				return take(i, ctx, id, func(tx *memstore.Tx) error { return i.Row(ctx, tx, "order", id) })
			}}
		},
	}
}

// joined is in the transaction, and not beside it.
func joined(i *Instance, ctx context.Context, id string, row func(*memstore.Tx) error) (answer string, err error) {
	err = i.Transact(ctx, func(tx *memstore.Tx) error {
		answer, err = once.InTx(ctx, i.Store(), tx, orders.For(id), func(context.Context) (string, error) {
			return rand.Text(), row(tx)
		})
		return err
	})
	return answer, err
}

func TestWorkInATransactionOfTheService(t *testing.T) {
	y, finding := lived(t, joining(joined), 100, 1)
	if finding != "" || y.totals.effects < 300 {
		t.Errorf("%d effects: %s", y.totals.effects, finding)
	}
	for name, test := range map[string]struct {
		take func(*Instance, context.Context, string, func(*memstore.Tx) error) (string, error)
		law  sim.Law
	}{
		"writes in another transaction": {func(i *Instance, ctx context.Context, id string, row func(*memstore.Tx) error) (string, error) {
			if err := i.Transact(ctx, row); err != nil {
				return "", err
			}
			return joined(i, ctx, id, func(*memstore.Tx) error { return nil })
		}, lawEffectOnce},
		"answers before the commit": {func(i *Instance, ctx context.Context, id string, row func(*memstore.Tx) error) (string, error) {
			_ = i.Transact(ctx, func(tx *memstore.Tx) error {
				_, err := once.InTx(ctx, i.Store(), tx, orders.For(id), func(context.Context) (string, error) { return "taken", row(tx) })
				return err
			})
			return "taken", nil
		}, lawNothingLost},
	} {
		_, finding := lived(t, joining(test.take), 365, 1)
		if !strings.Contains(finding, "law:     "+string(test.law)) {
			t.Errorf("%s: want %q:\n%s", name, test.law, finding)
		}
	}
}

// listener is a service that only consumes.
func listener(handle func(*Instance) inbox.Handler) Service {
	return Service{
		Effects: []Effect{{Name: "receipt"}},
		Message: orderMessage,
		Start: func(i *Instance) Program {
			c := &inbox.Consumer{Name: "receipts", Source: i.Queue("receipts", "orders"), Handler: handle(i)}
			return Program{Run: []func(context.Context) error{c.Run}}
		},
	}
}

func TestAServiceThatOnlyConsumes(t *testing.T) {
	_, finding := lived(t, listener(func(i *Instance) inbox.Handler {
		return inbox.Tx(i.Store(), func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			return i.Row(ctx, tx, "receipt", m.ID)
		})
	}), 40, 1)
	if finding != "" {
		t.Error(finding)
	}
	_, finding = lived(t, listener(func(i *Instance) inbox.Handler {
		return inbox.Tx(i.Store(), func(ctx context.Context, _ *memstore.Tx, m *broker.Message) error {
			return i.Call(ctx, "receipt", m.ID, m.ID)
		})
	}), 365, 1)
	if !strings.Contains(finding, string(lawEffectOnce)) {
		t.Errorf("an effect outside of the transaction was not found: %s", finding)
	}
}

func TestServicesThatAreNotOne(t *testing.T) {
	good := counter(true)
	for want, change := range map[string]func(*Service){
		"needs Start and Effects": func(s *Service) { s.Effects = nil },
		"give it one of them":     func(s *Service) { s.Message = orderMessage },
		"and no Request":          func(s *Service) { s.Request, s.Client = nil, retrying(nil) },
		"negative":                func(s *Service) { s.Days = -1 },
		"more than 999":           func(s *Service) { s.Requests = 1000 },
		"two with the name":       func(s *Service) { s.Effects = []Effect{{Name: "a"}, {Name: "a"}} },
		"without a name":          func(s *Service) { s.Effects = []Effect{{}} },
	} {
		s := good
		change(&s)
		if _, err := s.year(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	t.Setenv("ONCETEST_SEED", "seven")
	if _, err := good.year(); err == nil {
		t.Error("a seed that is no number was taken")
	}
}

func TestASeedPlaysAgain(t *testing.T) {
	s := shop(shopParts{order: orderWithoutKey})
	_, first := lived(t, s, 365, 7)
	t.Setenv("ONCETEST_SEED", "7")
	y, again := lived(t, s, 365, 1)
	head := func(finding string) string { head, _, _ := strings.Cut(finding, "enough:"); return head }
	if y.Seed != 7 || first == "" || head(first) != head(again) {
		t.Errorf("seed 7 was played twice:\n%s\n%s", first, again)
	}
}

// TestAFindingIsShrunk finds a mistake that needs a lost reply, and little else.
func TestAFindingIsShrunk(t *testing.T) {
	s := shop(shopParts{charge: chargeWithANewKey})
	s.Requests, s.Instances = 8, 3
	_, finding := lived(t, s, 365, 2)
	for _, words := range []string{"enough:  1 customer, 1 instance and ", `"charge" happens for`, "This breaks effect-once"} {
		if !strings.Contains(finding, words) {
			t.Errorf("%q is missing:\n%s", words, finding)
		}
	}
	if _, enough, _ := strings.Cut(finding, "1 instance and "); !strings.HasPrefix(enough, "1 fault") && !strings.HasPrefix(enough, "2 faults") {
		t.Errorf("it takes more than 2 faults:\n%s", finding)
	}
	told, _, _ := strings.Cut(finding, "calls:")
	if n := strings.Count(told, "\n"); n > 20 || !strings.Contains(told, "reply is lost") && !strings.Contains(told, "arrives") {
		t.Errorf("the story has %d lines, or does not say why:\n%s", n, told)
	}
}

// TestYearFindsMistakes plants a mistake in the shop. Year must find it, whatever
// the seed.
func TestYearFindsMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		parts shopParts
		law   sim.Law
	}{
		"publishes beside the transaction":       {shopParts{order: publishOrder}, lawAllOrNothing},
		"a new key for each attempt":             {shopParts{order: orderWithoutKey}, lawEffectOnce},
		"another answer for each attempt":        {shopParts{order: orderWithAnotherAnswer}, lawOneAnswer},
		"rejects what it has done":               {shopParts{order: orderThatIsRejectedLate}, lawAllOrNothing},
		"an effect outside in a transaction":     {shopParts{charge: chargeInTx}, lawEffectOnce},
		"a new key at the bank for each attempt": {shopParts{charge: chargeWithANewKey}, lawEffectOnce},
		"swallows errors":                        {shopParts{charge: chargeAndSwallowErrors}, lawNothingLost},
		"an effect of something else":            {shopParts{charge: chargeAnother}, lawKnown},
		"acknowledges before the commit":         {shopParts{bill: ackBeforeCommit}, lawNothingLost},
		"returns early": {shopParts{bill: func(*Instance, *inbox.Consumer) func(context.Context) error {
			return func(context.Context) error { return nil }
		}}, sim.RunEnded},
		"does not stop": {shopParts{bill: func(_ *Instance, c *inbox.Consumer) func(context.Context) error {
			return func(ctx context.Context) error {
				err := c.Run(ctx)
				time.Sleep(time.Hour)
				return err
			}
		}}, lawRunStays},
		"consumes nothing": {shopParts{bill: func(*Instance, *inbox.Consumer) func(context.Context) error {
			return func(ctx context.Context) error { <-ctx.Done(); return nil }
		}}, lawNothingLost},
	} {
		t.Run(name, func(t *testing.T) {
			s := shop(test.parts)
			s.Drain = 10 * time.Minute
			for seed := range uint64(2) {
				y, finding := lived(t, s, 365, seed+1)
				law := "law:     " + string(test.law)
				if !strings.Contains(finding, law) || !strings.Contains(finding, "story:") ||
					!strings.Contains(finding, "enough:") && test.law != lawRunStays {
					t.Errorf("seed %d: want %q:\n%s", seed+1, law, finding)
				}
				t.Logf("seed %d: found on day %d", seed+1, y.totals.days)
			}
		})
	}
}

// staffed is the shop with people. Its bank refuses some charges.
func staffed(parts shopParts) Service {
	s := shop(parts)
	s.Effects[1].Consumer, s.Effects[2].Consumer = "billing", "receipts"
	s.People = 2
	return s
}

// chargeOrPark parks what the bank refuses.
func chargeOrPark(i *Instance) inbox.Handler {
	op := &once.Operation[string]{OnUnknown: once.Resend}
	return inbox.Do(i.Store(), op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		err := i.Call(ctx, "charge", m.ID, key.String())
		switch {
		case errors.Is(err, ErrRefused):
			err = once.Permanent(once.NotDone(err))
		case once.IsDialError(err):
			err = once.NotDone(inbox.Unavailable(err))
		}
		return "charged", err
	})
}

func TestPeopleDecideAboutWhatIsSetAside(t *testing.T) {
	for name, charge := range map[string]func(*Instance) inbox.Handler{
		"parks": chargeOrPark, "resends": chargeOrder, "parks what is unknown": parking,
	} {
		t.Run(name, func(t *testing.T) {
			s := staffed(shopParts{charge: charge})
			if name == "parks what is unknown" {
				s.Effects[1].HonoursKeys = false
			}
			y, finding := lived(t, s, 40, 1)
			report := y.report(time.Second)
			if finding != "" || strings.Contains(report, "people:   0") {
				t.Error(finding, report)
			}
		})
	}
}

// chargeLater tries what failed again by itself, whatever a person has decided.
func chargeLater(i *Instance) inbox.Handler {
	op := &once.Operation[string]{OnUnknown: once.Resend}
	return inbox.Do(i.Store(), op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		err := i.Call(ctx, "charge", m.ID, key.String())
		if errors.Is(err, ErrRefused) {
			go func() {
				for range 10 {
					time.Sleep(time.Minute)
					if i.Call(context.Background(), "charge", m.ID, key.String()) == nil {
						return
					}
				}
			}()
			err = once.Permanent(once.NotDone(err))
		}
		return "charged", err
	})
}

// chargeIfNew takes a message that was refused before for one that is done.
func chargeIfNew(i *Instance) inbox.Handler {
	seen := &once.Operation[string]{Name: "seen"}
	op := &once.Operation[string]{OnUnknown: once.Resend}
	return inbox.Do(i.Store(), op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		rec, err := i.Store().Get(ctx, seen.For(m.ID).Key())
		if err != nil || rec.Status == once.Done {
			return "charged", err
		}
		err = i.Call(ctx, "charge", m.ID, key.String())
		if errors.Is(err, ErrRefused) {
			_, err = once.DoTx(ctx, i.Store(), seen.For(m.ID), func(context.Context, *memstore.Tx) (string, error) {
				return "seen", nil
			})
			return "", once.Permanent(once.NotDone(err))
		}
		return "charged", err
	})
}

func TestYearFindsMistakesThatNeedAPerson(t *testing.T) {
	for name, test := range map[string]struct {
		charge func(*Instance) inbox.Handler
		law    sim.Law
	}{
		"charges what was discarded": {chargeLater, lawGivenUp},
		"does not charge a replay":   {chargeIfNew, lawNothingLost},
	} {
		t.Run(name, func(t *testing.T) {
			s := staffed(shopParts{charge: test.charge})
			s.Drain = 10 * time.Minute
			_, finding := lived(t, s, 365, 1)
			if !strings.Contains(finding, "law:     "+string(test.law)) {
				t.Errorf("want %q:\n%s", test.law, finding)
			}
			if test.law == lawGivenUp && !strings.Contains(finding, "1 decision of a person and 1 fault") {
				t.Errorf("it is not shrunk to the decision:\n%s", finding)
			}
			s.People = 0
			if _, finding := lived(t, s, 40, 1); finding != "" {
				t.Errorf("it is found without a person:\n%s", finding)
			}
		})
	}
}
