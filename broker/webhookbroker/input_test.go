package webhookbroker

import (
	"bytes"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
)

// A sender may change parts of its requests between the attempts of one event.
// The input of a message is the rest: another input is another event.
func TestInputIsWhatTheSenderRepeats(t *testing.T) {
	anybody := HeaderSecret("x-key", shared)
	const (
		stripe = `{"id":"evt_1","object":"event","created":1686089970,"type":"charge.succeeded","pending_webhooks":2,` +
			`"data":{"object":{"id":"ch_1","amount":100000000000000001,"pending_webhooks":1}}}`
		grid = `{"order":7,"size":{"w":1,"h":2.50}}`
	)
	event := func(id, body string) *broker.Message {
		return &broker.Message{ID: id, Topic: "t", Body: []byte(body)}
	}
	of := func(kind, body string) *broker.Message {
		m := event("1", body)
		m.Header = map[string]string{contentType: kind}
		return m
	}
	for _, test := range []struct {
		what          string
		format        Format
		first, second *broker.Message
		same          bool
	}{
		{"Stripe: repeated", Stripe(stripeOld), event("1", stripe), event("1", stripe), true},
		{"Stripe: fewer endpoints are pending", Stripe(stripeOld), event("1", stripe),
			event("1", strings.Replace(stripe, `"pending_webhooks":2`, `"pending_webhooks": 1`, 1)), true},
		{"Stripe: no endpoint is pending", Stripe(stripeOld), event("1", stripe),
			event("1", strings.Replace(stripe, `"pending_webhooks":2,`, ``, 1)), true},
		{"Stripe: rendered again", Stripe(stripeOld), event("1", stripe),
			event("1", "{ "+strings.Replace(stripe[1:], `"id":"evt_1","object":"event"`, `"object":"event", "id":"evt_1"`, 1)), true},
		{"Stripe: another amount", Stripe(stripeOld), event("1", stripe),
			event("1", strings.Replace(stripe, "0000001,", "0000002,", 1)), false},
		{"Stripe: a member of the same name that is not the sender's", Stripe(stripeOld), event("1", stripe),
			event("1", strings.Replace(stripe, `"pending_webhooks":1}`, `"pending_webhooks":2}`, 1)), false},
		{"Stripe: another type", Stripe(stripeOld), event("1", stripe),
			event("1", strings.Replace(stripe, "succeeded", "refunded", 1)), false},
		{"Stripe: another event", Stripe(stripeOld), event("1", stripe),
			event("1", strings.Replace(stripe, "evt_1", "evt_2", 1)), false},
		{"Event Grid: rendered again", EventGrid(anybody, gridTopic), of("application/json", grid),
			of("application/json", `{"size": {"h":2.50, "w":1}, "order":7}`), true},
		{"Event Grid: another size", EventGrid(anybody, gridTopic), of("application/json", grid),
			of("application/json", strings.Replace(grid, "2.50", "2.51", 1)), false},
		{"CloudEvents: rendered again", CloudEvents(anybody), of("application/json", grid),
			of("application/json", `{"size": {"h":2.50, "w":1}, "order":7}`), true},
		{"CloudEvents: rendered again, without a type", CloudEvents(anybody), event("1", grid), event("1", grid+"\n"), true},
		{"CloudEvents: text", CloudEvents(anybody), of("text/plain", "1"), of("text/plain", "1 "), false},
		{"CloudEvents: no JSON", CloudEvents(anybody), of("application/json", "{"), of("application/json", "{ "), false},
		{"CloudEvents: the JSON ends early", CloudEvents(anybody), of("application/json", "1"), of("application/json", "1 2"), false},
		{"CloudEvents: no data", CloudEvents(anybody), event("1", ""), event("1", "null"), false},
		{"GitHub: another body", GitHub(stripeOld), event("1", grid), event("1", grid+" "), false},
		{"Standard Webhooks: another body", StandardWebhooks(first), event("1", grid), event("1", grid+" "), false},
		{"SNS: another body", SNS("arn:aws:sns:eu-west-1:1:t"), event("1", grid), event("1", grid+" "), false},
	} {
		rc := receiver(t, test.format, ReceiverOptions{})
		one, two := rc.Input(test.first), rc.Input(test.second)
		if same := bytes.Equal(one, two); same != test.same {
			t.Errorf("%s: compared equal: %v, want %v:\n%s\n%s", test.what, same, test.same, one, two)
		}
	}
}

// A secret that a program can try out is none.
func TestShortSecretsAreRefused(t *testing.T) {
	for length, ok := range map[int]bool{0: false, 1: false, 15: false, 16: true, 64: true} {
		secret := strings.Repeat("s", length)
		for what, f := range map[string]Format{
			"Stripe": Stripe(secret), "the second of Stripe": Stripe(stripeOld, secret),
			"GitHub": GitHub(secret), "the second of GitHub": GitHub(stripeOld, secret),
			"CloudEvents in a header": CloudEvents(HeaderSecret("x-key", secret)),
			"CloudEvents in the URL":  CloudEvents(QuerySecret("code", secret)),
			"Event Grid in a header":  EventGrid(HeaderSecret("x-key", secret), gridTopic),
		} {
			_, err := NewReceiver("a", f, nil)
			if (err == nil) != ok {
				t.Errorf("%s: a secret of %d bytes: %v", what, length, err)
			}
			if err != nil && (!strings.Contains(err.Error(), "at least 16") || length > 1 && strings.Contains(err.Error(), secret)) {
				t.Errorf("%s: the error does not say how long a secret is, or shows it: %v", what, err)
			}
		}
	}
	for _, short := range []string{"a", "whsec_YQ==", "whsec_" + strings.Repeat("YWFh", 7)} {
		if _, err := NewReceiver("a", StandardWebhooks(short), nil); err == nil || !strings.Contains(err.Error(), "24 to 64") {
			t.Errorf("Standard Webhooks and the secret %q: %v", short, err)
		}
	}
}
