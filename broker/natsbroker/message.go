package natsbroker

import (
	"fmt"
	"maps"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/nats-io/nats.go"
)

// headerDedup has the ID, by which the stream drops duplicates.
const headerDedup = nats.MsgIdHdr

// The fields of a message. NATS headers are case-sensitive, and these are spelled
// as HTTP does.
var (
	headerID      = textproto.CanonicalMIMEHeaderKey(broker.IDField)          // if the stream must not or cannot drop duplicates by it
	headerKey     = textproto.CanonicalMIMEHeaderKey(broker.OrderingKeyField) // the ordering key
	headerTime    = textproto.CanonicalMIMEHeaderKey(broker.TimeField)        // RFC 3339
	headerEscaped = textproto.CanonicalMIMEHeaderKey(broker.EscapedField)     // may be repeated

	// earlierKey is the ordering key of a message of an earlier build. The cause is
	// spelled in lower case.
	earlierKey = textproto.CanonicalMIMEHeaderKey(broker.KeyHeader)
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
	if out.OrderingKey == "" {
		out.OrderingKey = h[earlierKey]
	}
	if t, err := time.Parse(time.RFC3339Nano, h[headerTime]); err == nil {
		out.Time = t
	}
	header := make(map[string]string, len(h))
	for name, value := range h {
		lower := strings.ToLower(name)
		// A name that is spelled in lower case takes precedence.
		_, taken := h[lower]
		if (name == lower || !taken) && name != headerDedup && name != earlierKey && !broker.IsField(lower) {
			header[lower] = value
		}
	}
	if len(header) > 0 {
		out.Header = header
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
	for name, value := range map[string]string{broker.ReasonHeader: reason, broker.TopicHeader: m.Subject, broker.OriginHeader: origin} {
		replaceHeader(h, name, value)
	}
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

// replaceHeader sets a header in place of any other of that name.
func replaceHeader(h nats.Header, name, value string) {
	maps.DeleteFunc(h, func(spelled string, _ []string) bool { return strings.EqualFold(spelled, name) })
	if pairs := h[headerEscaped]; len(pairs) > 0 {
		h[headerEscaped] = slices.DeleteFunc(slices.Clone(pairs), func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	}
	setHeader(h, name, value)
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
