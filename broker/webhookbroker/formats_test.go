package webhookbroker

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

var quietly = slog.New(slog.DiscardHandler)

func receiver(tb testing.TB, f Format, o ReceiverOptions) *Receiver {
	tb.Helper()
	o.Logger = quietly
	rc, err := NewReceiver("test", f, &o)
	if err != nil {
		tb.Fatal(err)
	}
	return rc
}

// consume acknowledges all messages of a receiver until the test ends, and
// returns them.
func consume(tb testing.TB, rc *Receiver) <-chan *broker.Message {
	tb.Helper()
	s, err := rc.Open(context.Background(), 16)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	came, done := make(chan *broker.Message, 1000), make(chan struct{})
	go func() {
		defer close(done)
		for {
			ds, err := s.Receive(ctx, 16)
			if err != nil {
				return
			}
			for _, d := range ds {
				came <- d.Message
			}
			if err := s.Ack(ctx, ds); err != nil && ctx.Err() == nil {
				tb.Error(err)
			}
		}
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
		if err := s.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return came
}

// post sends a request to a receiver. Header has names and values in turn; a name
// may occur twice.
func post(rc *Receiver, body string, header ...string) *httptest.ResponseRecorder {
	return ask(rc, http.MethodPost, "/hooks", body, header...)
}

func ask(rc *Receiver, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	rc.ServeHTTP(w, r)
	return w
}

// want checks the status of an answer, and that a message came only with 2xx.
func want(t *testing.T, what string, w *httptest.ResponseRecorder, status int, came <-chan *broker.Message) *broker.Message {
	t.Helper()
	if w.Code != status {
		t.Errorf("%s: answered %d, want %d", what, w.Code, status)
	}
	select {
	case m := <-came:
		if w.Code/100 != 2 {
			t.Errorf("%s: answered %d, and yet %+v came", what, w.Code, m)
		}
		return m
	default:
		if status/100 == 2 {
			t.Errorf("%s: nothing came", what)
		}
		return new(broker.Message)
	}
}

func hexMAC(secret string, parts ...string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, part := range parts {
		mac.Write([]byte(part))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

const (
	stripeOld = "whsec_old_secret_of_the_endpoint"
	stripeNew = "whsec_new_secret_of_the_endpoint"
	charge    = `{"id":"evt_1NG8Du2eZvKYlo2CUI79vXWy","object":"event","created":1686089970,"type":"charge.succeeded","data":{"object":{"id":"ch_1"}}}`
)

func TestStripe(t *testing.T) {
	rc := receiver(t, Stripe(stripeOld, stripeNew), ReceiverOptions{})
	came := consume(t, rc)
	at := func(age time.Duration) string { return strconv.FormatInt(time.Now().Add(-age).Unix(), 10) }
	sign := func(at, secret, body string) string { return "t=" + at + ",v1=" + hexMAC(secret, at, ".", body) }
	now := at(0)
	for what, test := range map[string]struct {
		header []string
		body   string
		status int
	}{
		"as signed":                  {[]string{"Stripe-Signature", sign(now, stripeOld, charge)}, charge, 200},
		"by the new secret":          {[]string{"Stripe-Signature", sign(now, stripeNew, charge)}, charge, 200},
		"by two, one of them known":  {[]string{"Stripe-Signature", sign(now, "another", charge) + ",v1=" + hexMAC(stripeNew, now, ".", charge)}, charge, 200},
		"with an unknown scheme":     {[]string{"Stripe-Signature", "v0=00," + sign(now, stripeOld, charge)}, charge, 200},
		"in lower case":              {[]string{"stripe-signature", sign(now, stripeOld, charge)}, charge, 200},
		"nearly too old":             {[]string{"Stripe-Signature", sign(at(4*time.Minute), stripeOld, charge)}, charge, 200},
		"by another secret":          {[]string{"Stripe-Signature", sign(now, "another", charge)}, charge, 401},
		"another body":               {[]string{"Stripe-Signature", sign(now, stripeOld, charge)}, charge + " ", 401},
		"another time":               {[]string{"Stripe-Signature", "t=" + at(time.Second) + ",v1=" + hexMAC(stripeOld, now, ".", charge)}, charge, 401},
		"too old":                    {[]string{"Stripe-Signature", sign(at(6*time.Minute), stripeOld, charge)}, charge, 401},
		"from the future":            {[]string{"Stripe-Signature", sign(at(-6*time.Minute), stripeOld, charge)}, charge, 401},
		"two times":                  {[]string{"Stripe-Signature", "t=" + at(time.Hour) + "," + sign(now, stripeOld, charge)}, charge, 401},
		"only v0":                    {[]string{"Stripe-Signature", strings.Replace(sign(now, stripeOld, charge), "v1=", "v0=", 1)}, charge, 401},
		"no signature":               {nil, charge, 401},
		"an empty signature":         {[]string{"Stripe-Signature", "t=" + now + ",v1="}, charge, 401},
		"two headers":                {[]string{"Stripe-Signature", sign(now, stripeOld, charge), "Stripe-Signature", sign(now, stripeOld, charge)}, charge, 401},
		"a flood of signatures":      {[]string{"Stripe-Signature", sign(now, stripeOld, charge) + strings.Repeat(",v1=00", 40)}, charge, 401},
		"signed, but no JSON":        {[]string{"Stripe-Signature", sign(now, stripeOld, "{")}, "{", 400},
		"signed, but without an ID":  {[]string{"Stripe-Signature", sign(now, stripeOld, `{"type":"a"}`)}, `{"type":"a"}`, 400},
		"signed, with an ID in case": {[]string{"Stripe-Signature", sign(now, stripeOld, `{"ID":"a","type":"a"}`)}, `{"ID":"a","type":"a"}`, 400},
	} {
		m := want(t, what, post(rc, test.body, test.header...), test.status, came)
		if test.status == 200 && (m.ID != "evt_1NG8Du2eZvKYlo2CUI79vXWy" || m.Topic != "charge.succeeded" ||
			m.Time.Unix() != 1686089970 || string(m.Body) != charge) {
			t.Errorf("%s: %+v", what, m)
		}
	}
}

// The vector is the one of GitHub's documentation.
func TestGitHub(t *testing.T) {
	const (
		secret    = "It's a Secret to Everybody"
		body      = "Hello, World!"
		signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	)
	rc := receiver(t, GitHub("the next secret of all", secret), ReceiverOptions{})
	came := consume(t, rc)
	valid := []string{"X-Hub-Signature-256", signature, "X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958",
		"X-GitHub-Event", "push", "Content-Type", "application/json"}
	with := func(name string, values ...string) []string {
		var header []string
		for i := 0; i < len(valid); i += 2 {
			if valid[i] != name {
				header = append(header, valid[i:i+2]...)
			}
		}
		for _, value := range values {
			header = append(header, name, value)
		}
		return header
	}
	for what, test := range map[string]struct {
		header []string
		body   string
		status int
	}{
		"as documented":        {valid, body, 200},
		"by the next secret":   {with("X-Hub-Signature-256", "sha256="+hexMAC("the next secret of all", body)), body, 200},
		"with a charset":       {with("Content-Type", "application/json; charset=utf-8"), body, 200},
		"another body":         {valid, body + "!", 401},
		"by another secret":    {with("X-Hub-Signature-256", "sha256="+hexMAC("another", body)), body, 401},
		"SHA-1 only":           {with("X-Hub-Signature-256"), body, 401},
		"no prefix":            {with("X-Hub-Signature-256", strings.TrimPrefix(signature, "sha256=")), body, 401},
		"an empty signature":   {with("X-Hub-Signature-256", "sha256="), body, 401},
		"two signatures":       {with("X-Hub-Signature-256", signature, signature), body, 401},
		"no delivery":          {with("X-GitHub-Delivery"), body, 401},
		"two deliveries":       {with("X-GitHub-Delivery", "1", "2"), body, 401},
		"no event":             {with("X-GitHub-Event"), body, 401},
		"a form":               {with("Content-Type", "application/x-www-form-urlencoded"), body, 415},
		"compressed":           {append(with(""), "Content-Encoding", "gzip"), body, 415},
		"a delivery with a NL": {with("X-GitHub-Delivery", "1\x7f"), body, 400},
	} {
		m := want(t, what, post(rc, test.body, test.header...), test.status, came)
		if test.status == 200 && (m.ID != "72d3162e-cc78-11e3-81ab-4c9367dc0958" || m.Topic != "push" || string(m.Body) != body) {
			t.Errorf("%s: %+v", what, m)
		}
	}
}

// The vector is the one of the specification of Standard Webhooks. It was signed
// in 2021, so the tolerance is long.
func TestStandardWebhooks(t *testing.T) {
	const body = `{"test": 2432232314}`
	vector := []string{"webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp", "1614265330",
		"webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}
	rc := receiver(t, StandardWebhooks(second, first), ReceiverOptions{Tolerance: 100 * 365 * 24 * time.Hour})
	came := consume(t, rc)
	m := want(t, "the vector", post(rc, body, vector...), 204, came)
	if m.ID != "msg_p5jXN8AQM9LWM0D4loKWxJek" || m.Topic != "webhook" || string(m.Body) != body {
		t.Errorf("%+v", m)
	}
	want(t, "an ID twice", post(rc, body, append(vector, "webhook-id", "msg_2")...), 401, came)
	want(t, "a signature twice", post(rc, body, append(vector, "webhook-signature", "v1,AA==")...), 401, came)
	strict := receiver(t, StandardWebhooks(first), ReceiverOptions{})
	came = consume(t, strict)
	want(t, "with the default tolerance", post(strict, body, vector...), 401, came)

	h := make(http.Header)
	typed := `{"type":"invoice.paid"}`
	hook.Sign(h, keysOf(t, first), "msg_3", []byte(typed), time.Now())
	m = want(t, "a type in the body", post(strict, typed, "webhook-id", h.Get("webhook-id"), "webhook-timestamp",
		h.Get("webhook-timestamp"), "webhook-signature", h.Get("webhook-signature"),
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), 204, came)
	if m.Topic != "invoice.paid" || m.Header["traceparent"] == "" {
		t.Errorf("%+v", m)
	}
}

func TestCustom(t *testing.T) {
	f := Custom(func(r *http.Request, body []byte) ([]*broker.Message, error) {
		switch r.Header.Get("X-Case") {
		case "forged":
			return nil, fmt.Errorf("no: %w", ErrUnverified)
		case "wrong":
			return nil, fmt.Errorf("no: %w", broker.ErrInvalid)
		case "down":
			return nil, errors.New("the key server does not answer")
		case "nil":
			return []*broker.Message{nil}, nil
		case "none":
			return nil, nil
		}
		return []*broker.Message{{ID: "1", Topic: "t", Body: body}}, nil
	})
	rc := receiver(t, f, ReceiverOptions{})
	came := consume(t, rc)
	want(t, "valid", post(rc, "a"), 204, came)
	want(t, "forged", post(rc, "a", "X-Case", "forged"), 401, came)
	want(t, "wrong", post(rc, "a", "X-Case", "wrong"), 400, came)
	want(t, "nil", post(rc, "a", "X-Case", "nil"), 400, came)
	down := post(rc, "a", "X-Case", "down")
	want(t, "down", down, 503, came)
	if down.Header().Get("Retry-After") == "" || strings.Contains(down.Body.String(), "key server") {
		t.Errorf("%v %q", down.Header(), down.Body)
	}
	if w := post(rc, "", "X-Case", "none"); w.Code != 204 {
		t.Errorf("a request without messages: %d", w.Code)
	}
}

func TestReceiversAreRefused(t *testing.T) {
	ok := Custom(func(*http.Request, []byte) ([]*broker.Message, error) { return nil, nil })
	for what, test := range map[string]struct {
		name    string
		format  Format
		options *ReceiverOptions
	}{
		"no name":                {"", ok, nil},
		"a name with a NL":       {"a\nb", ok, nil},
		"no format":              {"a", Format{}, nil},
		"no function":            {"a", Custom(nil), nil},
		"no Stripe secret":       {"a", Stripe(), nil},
		"an empty Stripe secret": {"a", Stripe(stripeOld, ""), nil},
		"no GitHub secret":       {"a", GitHub(), nil},
		"a short secret":         {"a", StandardWebhooks("whsec_AAAA"), nil},
		"no authorization":       {"a", CloudEvents(Authorization{}), nil},
		"a short shared secret":  {"a", CloudEvents(HeaderSecret("x-key", "short")), nil},
		"no shared secret":       {"a", EventGrid(QuerySecret("code"), "/t"), nil},
		"no topic of Event Grid": {"a", EventGrid(HeaderSecret("x-key", "0123456789abcdef")), nil},
		"no topic of SNS":        {"a", SNS(), nil},
		"a negative option":      {"a", ok, &ReceiverOptions{MaxBody: -1}},
		"batches above Backlog":  {"a", ok, &ReceiverOptions{MaxEvents: 10, Backlog: 9}},
	} {
		if rc, err := NewReceiver(test.name, test.format, test.options); !errors.Is(err, broker.ErrInvalid) || rc != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, o := range []*ReceiverOptions{nil, {MaxEvents: 1000}, {Backlog: 5}} {
		if _, err := NewReceiver("a", ok, o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
