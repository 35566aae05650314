// Package parcel puts messages into the words of NATS, and reads them there, whoever has written them. It talks to no
// server.
package parcel

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/nats-io/nats.go"
)

// Headers of NATS are case-sensitive, so these cannot meet a header of a message, whose names are lower case.
const (
	headerDedup   = nats.MsgIdHdr  // the ID, which the stream takes to drop duplicates
	headerID      = "Once-Id"      // the ID, where the stream shall not, or cannot
	headerKey     = "Once-Key"     // the ordering key
	headerTime    = "Once-Time"    // RFC 3339
	headerEscaped = "Once-Escaped" // name=value of headers whose value NATS would trim, once for each
	headerReason  = "Once-Reason"  // of a dead letter: why
	headerTopic   = "Once-Topic"   // of a dead letter: the subject it had
	headerOrigin  = "Once-Origin"  // of a dead letter: where it was stored
)

// Pack checks a message and writes it as one of NATS. Its body is shared.
func Pack(m *broker.Message) (*nats.Msg, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	if err := CheckSubject(m.Topic); err != nil {
		return nil, err
	}
	h := make(nats.Header, len(m.Header)+3)
	for name, value := range m.Header {
		put(h, name, value)
	}
	if isTrimmed(m.ID) {
		put(h, headerDedup, m.ID)
	} else {
		// The server would take it for a duplicate of the same ID without spaces.
		put(h, headerID, m.ID)
	}
	if m.OrderingKey != "" {
		put(h, headerKey, m.OrderingKey)
	}
	if !m.Time.IsZero() {
		put(h, headerTime, m.Time.UTC().Format(time.RFC3339Nano))
	}
	return &nats.Msg{Subject: m.Topic, Header: h, Data: m.Body}, nil
}

// Unpack reads a message that was stored at a time, by anyone.
func Unpack(m *nats.Msg, stored time.Time) *broker.Message {
	h := unescaped(m.Header)
	out := &broker.Message{ID: h[headerID], Topic: m.Subject, OrderingKey: h[headerKey], Body: m.Data, Time: stored.UTC()}
	if out.ID == "" {
		out.ID = h[headerDedup]
	}
	if t, err := time.Parse(time.RFC3339Nano, h[headerTime]); err == nil {
		out.Time = t
	}
	for _, own := range []string{headerDedup, headerID, headerKey, headerTime, headerEscaped} {
		delete(h, own)
	}
	if len(h) == 0 {
		return out
	}
	out.Header = make(map[string]string, len(h))
	for name, value := range h {
		lower := strings.ToLower(name)
		// A name that was lower case all along has the right to it.
		if _, taken := h[lower]; name == lower || !taken {
			out.Header[lower] = value
		}
	}
	return out
}

// Letter is a message as it goes to the dead ones. Its ID is in a header of its own, because a stream that has just seen
// the message itself, or has had it here before, would drop it as a duplicate.
func Letter(m *nats.Msg, subject, reason, origin string) *nats.Msg {
	h := make(nats.Header, len(m.Header)+4)
	maps.Copy(h, m.Header)
	// The server's own instructions were meant for the stream that the message was published to.
	maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") })
	if id := m.Header.Get(headerDedup); id != "" && h.Get(headerID) == "" {
		h.Set(headerID, id)
	}
	h.Set(headerReason, reason)
	h.Set(headerTopic, m.Subject)
	h.Set(headerOrigin, origin)
	return &nats.Msg{Subject: subject, Header: h, Data: m.Data}
}

// put sets a header so that its value arrives as it is.
func put(h nats.Header, name, value string) {
	if isTrimmed(value) {
		h[name] = []string{value}
		return
	}
	h.Add(headerEscaped, name+"="+url.PathEscape(value))
}

// unescaped are the headers with the last value of each, and with those that were escaped.
func unescaped(h nats.Header) map[string]string {
	plain := make(map[string]string, len(h))
	for name, values := range h {
		if len(values) > 0 {
			plain[name] = values[len(values)-1]
		}
	}
	for _, pair := range h[headerEscaped] {
		name, value, _ := strings.Cut(pair, "=")
		if value, err := url.PathUnescape(value); err == nil {
			plain[name] = value
		}
	}
	return plain
}

func isTrimmed(s string) bool { return strings.TrimSpace(s) == s }

// CheckSubject refuses what is no subject to publish to. Those that begin with a dollar sign are the server's: a topic
// that is made of someone's input could else delete a stream.
func CheckSubject(s string) error {
	bad := strings.HasPrefix(s, "$") || strings.ContainsAny(s, " \t\r\n")
	for token := range strings.SplitSeq(s, ".") {
		bad = bad || token == "" || token == "*" || token == ">"
	}
	if bad {
		return fmt.Errorf("%w: the topic %.80q is no subject to publish to: give it tokens with dots between them, without "+
			"spaces, wildcards and a dollar sign in front", broker.ErrInvalid, s)
	}
	return nil
}
