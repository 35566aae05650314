package servicebusbroker

import (
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker"
)

// Earlier builds had the ordering key in the property once-key if the session
// could not tell it, and the cause, if there was one, in its place.
func TestAMessageOfAnEarlierBuildKeepsItsOrderingKey(t *testing.T) {
	long := strings.Repeat("k", 200)
	digest := *shortened(long, "", make(map[string]any))
	const none = "none"
	for name, c := range map[string]struct {
		session, once, now, key, cause string
	}{
		"plain":                       {"k", none, none, "k", ""},
		"plain, with a cause":         {"k", "c", none, "k", "c"},
		"no key":                      {"id", "", none, "", ""},
		"no key, with a cause":        {"id", "c", none, "", "c"},
		"upper case":                  {"key", "Key", none, "Key", ""},
		"long":                        {digest, long, none, long, ""},
		"long, with a cause":          {digest, "c", none, digest, "c"},
		"now, plain, with a cause":    {"k", "c", "k", "k", "c"},
		"now, the cause is the key":   {"c", "c", "c", "c", "c"},
		"now, no key, with a cause":   {"id", "c", "", "", "c"},
		"now, upper case, with cause": {"KEY", "c", "Key", "Key", "c"},
	} {
		raw := &azservicebus.ReceivedMessage{MessageID: "id", SessionID: &c.session, ApplicationProperties: make(map[string]any)}
		for property, value := range map[string]string{"once-key": c.once, "once-ordering-key": c.now} {
			if value != none {
				raw.ApplicationProperties[property] = value
			}
		}
		m := decode(raw, "orders")
		if _, has := m.Header[broker.KeyHeader]; m.OrderingKey != c.key || m.Header[broker.KeyHeader] != c.cause || has != (c.cause != "") {
			t.Errorf("%s: the ordering key %q and the headers %q, want %q and the cause %q", name, m.OrderingKey, m.Header, c.key, c.cause)
		}
	}
}
