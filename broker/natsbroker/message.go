package natsbroker

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/nats-io/nats.go"
)

// NATS headers are case-sensitive, so these do not collide with headers of
// messages, whose names are lower case.
const (
	headerDedup   = nats.MsgIdHdr  // the ID, by which the stream drops duplicates
	headerID      = "Once-Id"      // the ID, if the stream must not or cannot drop duplicates by it
	headerKey     = "Once-Key"     // the ordering key
	headerTime    = "Once-Time"    // RFC 3339
	headerEscaped = "Once-Escaped" // name=value of a header whose value NATS would trim; may be repeated
	headerReason  = "Once-Reason"  // of a dead letter: why
	headerTopic   = "Once-Topic"   // of a dead letter: its original subject
	headerOrigin  = "Once-Origin"  // of a dead letter: where it was stored
)

// encode checks a message and returns it as a NATS message, which shares its
// body.
func encode(m *broker.Message) (*nats.Msg, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	if err := checkSubject(m.Topic); err != nil {
		return nil, err
	}
	h := make(nats.Header, len(m.Header)+3)
	for name, value := range m.Header {
		setHeader(h, name, value)
	}
	if isTrimmed(m.ID) {
		setHeader(h, headerDedup, m.ID)
	} else {
		// The server would trim it, and treat it as a duplicate of the trimmed
		// ID.
		setHeader(h, headerID, m.ID)
	}
	if m.OrderingKey != "" {
		setHeader(h, headerKey, m.OrderingKey)
	}
	if !m.Time.IsZero() {
		setHeader(h, headerTime, m.Time.UTC().Format(time.RFC3339Nano))
	}
	return &nats.Msg{Subject: m.Topic, Header: h, Data: m.Body}, nil
}

// decode returns a NATS message from any publisher as a message.
func decode(m *nats.Msg, stored time.Time) *broker.Message {
	h := unescapedHeader(m.Header)
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
		// A name that is spelled in lower case takes precedence.
		if _, taken := h[lower]; name == lower || !taken {
			out.Header[lower] = value
		}
	}
	return out
}

// deadLetter returns a message for the dead-letter subject. Its ID is not in
// Nats-Msg-Id, because a stream that has seen the message recently would drop it
// as a duplicate.
func deadLetter(m *nats.Msg, subject, reason, origin string) *nats.Msg {
	h := make(nats.Header, len(m.Header)+4)
	maps.Copy(h, m.Header)
	// Instructions to the server were for the original stream.
	maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") })
	if id := m.Header.Get(headerDedup); id != "" && h.Get(headerID) == "" {
		h.Set(headerID, id)
	}
	h.Set(headerReason, reason)
	h.Set(headerTopic, m.Subject)
	h.Set(headerOrigin, origin)
	return &nats.Msg{Subject: subject, Header: h, Data: m.Data}
}

// setHeader sets a header, escaped if NATS would trim its value.
func setHeader(h nats.Header, name, value string) {
	if isTrimmed(value) {
		h[name] = []string{value}
		return
	}
	h.Add(headerEscaped, name+"="+url.PathEscape(value))
}

// unescapedHeader returns the last value of each header, unescaped.
func unescapedHeader(h nats.Header) map[string]string {
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

// checkSubject returns an error if s is not a subject to publish to. Subjects
// that begin with a dollar sign belong to the server. A topic made from user
// input could otherwise delete a stream.
func checkSubject(s string) error {
	bad := strings.HasPrefix(s, "$") || strings.ContainsAny(s, " \t\r\n")
	for token := range strings.SplitSeq(s, ".") {
		bad = bad || token == "" || token == "*" || token == ">"
	}
	if bad {
		return fmt.Errorf("%w: the topic %.80q is not a subject to publish to: use tokens separated by dots, without "+
			"spaces, wildcards and a leading dollar sign", broker.ErrInvalid, s)
	}
	return nil
}
