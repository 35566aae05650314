package webhookbroker

import (
	"maps"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

// The prefixes of headers. Attributes of CloudEvents have letters and digits
// only, so other names have another prefix.
const (
	attribute = "ce-"
	beside    = broker.HeaderPrefix
	library   = "once-" // reserved names, which are sent unchanged

	contentType = "content-type"
	maxName     = 20 // maximum length of an attribute, as CloudEvents recommends
)

// own are attributes that are not made from headers.
var own = map[string]bool{"specversion": true, "id": true, "source": true, "type": true, "time": true,
	"partitionkey": true, "datacontenttype": true, "data": true}

// event sets the headers of a CloudEvent in binary mode.
func event(h http.Header, m *broker.Message, source string) {
	h.Set("User-Agent", "once")
	h.Set(attribute+"specversion", "1.0")
	h.Set(attribute+"id", escape(m.ID))
	h.Set(attribute+"source", escape(source))
	h.Set(attribute+"type", escape(m.Topic))
	if m.OrderingKey != "" {
		h.Set(attribute+"partitionkey", escape(m.OrderingKey))
	}
	if !m.Time.IsZero() {
		h.Set(attribute+"time", m.Time.UTC().Format(time.RFC3339Nano))
	}
	for name, value := range m.Header {
		switch {
		case name == contentType && isMediaType(value):
			h.Set(name, value)
		case strings.HasPrefix(name, library) && !strings.HasPrefix(name, beside):
			h.Set(name, escape(value))
		case isAttribute(name):
			h.Set(attribute+name, escape(value))
		default:
			h.Set(beside+name, escape(value))
		}
	}
	for _, trace := range []string{"traceparent", "tracestate"} { // for tracing in the receiver's HTTP server
		if value := m.Header[trace]; value != "" && isPlain(value) {
			h.Set(trace, value)
		}
	}
}

// unpack sets the fields of a message from the headers of event, except the ID
// and the body.
func unpack(h http.Header, m *broker.Message) {
	m.Topic = unescape(h.Get(attribute + "type"))
	m.OrderingKey = unescape(h.Get(attribute + "partitionkey"))
	m.Time, _ = time.Parse(time.RFC3339, unescape(h.Get(attribute+"time"))) // zero if it is missing
	header := make(map[string]string)
	if kind := h.Get(contentType); kind != "" {
		header[contentType] = kind
	}
	for name, values := range h {
		name = strings.ToLower(name)
		if rest, ok := strings.CutPrefix(name, attribute); ok && !own[rest] {
			header[rest] = unescape(values[0])
		} else if rest, ok := strings.CutPrefix(name, beside); ok {
			header[rest] = unescape(values[0])
		} else if strings.HasPrefix(name, library) {
			header[name] = unescape(values[0])
		}
	}
	dropFields(header)
	if len(header) > 0 {
		m.Header = header
	}
}

// dropFields removes names that no header of a message may have.
func dropFields(header map[string]string) {
	maps.DeleteFunc(header, func(name, _ string) bool { return broker.IsField(name) })
}

func isAttribute(name string) bool {
	if len(name) > maxName || own[name] {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == "" // Trim removes from both ends
}

func isMediaType(value string) bool {
	_, _, err := mime.ParseMediaType(value)
	return err == nil && isPlain(value)
}

// isPlain reports whether a value arrives unchanged.
func isPlain(value string) bool {
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			return false
		}
	}
	return value == strings.TrimSpace(value)
}

const hexDigits = "0123456789ABCDEF"

// escape percent-encodes a value as in the HTTP binding of CloudEvents: all bytes
// except visible ASCII, and quotes, percent signs and the first byte of also.
func escape(value string, also ...byte) string {
	var b strings.Builder
	for i := range len(value) {
		c := value[i]
		if c <= ' ' || c > '~' || c == '"' || c == '%' || len(also) > 0 && c == also[0] {
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// unescape reverses escape. It keeps a percent sign without two hex digits.
func unescape(value string) string {
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '%' && i+2 < len(value) {
			high, low := strings.IndexByte(hexDigits, upper(value[i+1])), strings.IndexByte(hexDigits, upper(value[i+2]))
			if high >= 0 && low >= 0 {
				b.WriteByte(byte(high<<4 | low))
				i += 2
				continue
			}
		}
		b.WriteByte(value[i])
	}
	return b.String()
}

func upper(c byte) byte {
	if 'a' <= c && c <= 'f' {
		return c - 'a' + 'A'
	}
	return c
}
