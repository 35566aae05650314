package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"maps"
	"mime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/legible"
)

const (
	maxPayload = 64 << 10 // bytes of a payload on a page
	maxDepth   = 64       // of JSON that is indented: each level makes each line of it longer
)

// payload is the content of a message for people.
type payload struct {
	Type    string // as the message says
	Size    int
	Form    string // JSON, text or bytes
	Text    string
	Cut     bool // Text is only the beginning
	Headers []part
}

// contentType is the header in which the brokers of this project keep the type.
const contentType = "content-type"

func payloadOf(m *broker.Message) payload {
	p := payload{Type: m.Header[contentType], Size: len(m.Body)}
	p.Form, p.Text, p.Cut = formatted(m.Body, p.Type)
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		p.Headers = append(p.Headers, part{legible.Line(name), legible.Text(m.Header[name])})
	}
	return p
}

// formatted formats bytes that anybody may have chosen. What is no text is shown as
// hexadecimal numbers, whatever its type claims to be.
func formatted(body []byte, kind string) (form, text string, cut bool) {
	media, _, _ := mime.ParseMediaType(kind) // empty if it cannot be read
	claims := media == "application/json" || strings.HasSuffix(media, "+json") || media == ""
	if claims && len(body) <= maxPayload && shallow(body) && json.Valid(body) {
		var out bytes.Buffer
		if json.Indent(&out, body, "", "  ") == nil {
			body, form = out.Bytes(), "JSON"
		}
	}
	if cut = len(body) > maxPayload; cut {
		body = body[:maxPayload]
		for len(body) > 0 && !utf8.RuneStart(body[len(body)-1]) {
			body = body[:len(body)-1]
		}
		if len(body) > 0 && body[len(body)-1] >= utf8.RuneSelf {
			body = body[:len(body)-1]
		}
	}
	switch {
	case form != "":
	case isText(body):
		form = "text"
	default:
		if len(body) > maxPayload/4 { // a dump has four characters for each byte, and more
			body, cut = body[:maxPayload/4], true
		}
		return "bytes", hex.Dump(body), cut
	}
	return form, legible.Lines(string(body)), cut
}

func isText(body []byte) bool { return utf8.Valid(body) && bytes.IndexByte(body, 0) < 0 }

// shallow reports whether JSON is nested little enough to be indented.
func shallow(body []byte) bool {
	depth := 0
	for _, b := range body {
		switch b {
		case '[', '{':
			if depth++; depth > maxDepth {
				return false
			}
		case ']', '}':
			depth--
		}
	}
	return true
}

// names are the names of the headers of a message, without their values.
func headerNames(m *broker.Message) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		all = append(all, legible.Line(name))
	}
	return all
}
