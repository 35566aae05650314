package webhookbroker

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/effectively-once/once/broker"
)

// Input returns what all requests about one event have in common, which is what
// a consumer compares. It is the body, except for formats whose senders change
// parts of it between attempts.
func (rc *Receiver) Input(m *broker.Message) []byte {
	if rc.format.input == nil {
		return m.Body
	}
	return rc.format.input(m)
}

// stripeInput leaves out the number of endpoints that have not taken the event
// yet, which falls while Stripe repeats it to one of them.
func stripeInput(m *broker.Message) []byte { return canonical(m.Body, "pending_webhooks") }

// dataInput is for senders that put the data into an envelope, and may write
// both anew for each request.
func dataInput(m *broker.Message) []byte {
	kind, _, _ := strings.Cut(m.Header[contentType], ";")
	if kind = strings.ToLower(strings.TrimSpace(kind)); kind != "" && !isJSON(kind) {
		return m.Body
	}
	return canonical(m.Body)
}

// canonical returns a JSON document without some of its outermost members, in a
// form that does not depend on spaces and on the order of members. Numbers keep
// their digits. A text that is no JSON document is returned unchanged.
func canonical(text []byte, without ...string) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var document any
	if d.Decode(&document) != nil || len(bytes.Trim(text[d.InputOffset():], " \t\r\n")) > 0 {
		return text
	}
	if members, ok := document.(map[string]any); ok {
		for _, member := range without {
			delete(members, member)
		}
	}
	same, err := json.Marshal(document)
	if err != nil {
		return text
	}
	return same
}
