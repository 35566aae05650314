package httponce

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/effectively-once/once"
)

// Response is a recorded response.
type Response struct {
	Status int
	Header http.Header // the headers that are replayed
	Body   []byte
	NoBody bool // the body was not kept
}

// Outcome returns the response as it is recorded, unsealed. Pass it to
// [once.MarkDone] to settle a request whose outcome is unknown.
func (r *Response) Outcome() (once.Outcome, error) {
	if r == nil {
		return once.Outcome{}, errors.New("httponce: there is no response")
	}
	return codec{}.Encode(r.recording())
}

func (r *Response) recording() *recording {
	return &recording{status: r.Status, head: fieldsOf(r.Header), body: r.Body, noBody: r.NoBody}
}

// recording is a response on its way to the store or from it.
type recording struct {
	status int
	head   []field // in order
	body   []byte
	noBody bool            // the body was not kept
	key    [16]byte        // of the request
	only   map[string]bool // the headers to record; nil: all that may be
}

// setType sets the header Content-Type that net/http would detect.
func (r *recording) setType(body []byte) {
	if len(body) > 0 {
		const name = "Content-Type"
		r.head = append(slices.Clip(r.head), field{name, name, []string{http.DetectContentType(body)}})
		sortFields(r.head)
	}
}

// codec writes a response in the format of HTTP/1.1: status line, headers, body.
// People and tools can read it. The version in the status line is the version
// of this format.
type codec struct{ ring *Ring }

const (
	plainType  = "application/http"
	sealedType = plainType + "; sealed="
)

// Encode encodes a response, sealed if the ring has a secret.
func (c codec) Encode(r *recording) (once.Outcome, error) {
	text, err := r.append(nil)
	if err != nil || !c.ring.seals() {
		return once.Outcome{Body: text, ContentType: plainType}, err
	}
	sealed, id := c.ring.seal(text, r.key)
	return once.Outcome{Body: sealed, ContentType: sealedType + id}, nil
}

// Decode decodes a response.
func (c codec) Decode(out once.Outcome) (*recording, error) {
	text, key := out.Body, [16]byte{}
	if strings.HasPrefix(out.ContentType, sealedType) {
		if c.ring == nil {
			return nil, errors.New("httponce: the response is sealed, and there is no Ring to open it with")
		}
		var err error
		if text, key, err = c.ring.open(text); err != nil {
			return nil, err
		}
	} else if out.ContentType != plainType {
		return nil, fmt.Errorf("httponce: the outcome has the type %q, not %s: other code has used this key", out.ContentType, plainType)
	}
	r, err := parseResponse(text)
	if err == nil {
		r.key = key
	}
	return r, err
}

func (r *recording) append(b []byte) ([]byte, error) {
	if r.status < 200 || r.status > 999 {
		return nil, fmt.Errorf("httponce: %d is not the status of a response", r.status)
	}
	b = slices.Grow(b, 32+64*len(r.head)+len(r.body))
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(r.status), 10)
	b = append(b, "\r\n"...)
	hops := hopsOf(r.head)
	for _, f := range r.head {
		if !isReplayed(f.canonical, r.only, hops) {
			continue
		}
		if !validHeader(f.canonical) {
			return nil, fmt.Errorf("httponce: %q is not the name of a header", f.canonical)
		}
		for _, value := range f.values {
			b = append(append(append(append(b, f.canonical...), ": "...), oneLine(value)...), "\r\n"...)
		}
	}
	if r.noBody {
		return append(b, bodyNotKept+": 1\r\n\r\n"...), nil
	}
	return append(append(b, "\r\n"...), r.body...), nil
}

// oneLine returns the value of a header as net/http sends it.
func oneLine(value string) string {
	if strings.ContainsAny(value, "\r\n") {
		value = strings.NewReplacer("\r", " ", "\n", " ").Replace(value)
	}
	return textproto.TrimString(value)
}

var errResponse = errors.New("httponce: not a recorded response")

// parseResponse parses the output of append, or the same format written by
// hand. The body is a part of text, not a copy.
func parseResponse(text []byte) (*recording, error) {
	end := bytes.Index(text, []byte("\r\n\r\n"))
	if end < 0 {
		return nil, errResponse
	}
	line, lines, _ := strings.Cut(string(text[:end]), "\r\n")
	status, version := strings.CutPrefix(line, "HTTP/1.1 ")
	status, _, _ = strings.Cut(status, " ") // without the reason phrase
	code, err := strconv.Atoi(status)
	if !version || err != nil || len(status) != 3 || code < 200 {
		return nil, errResponse
	}
	r := &recording{status: code, body: text[end+4:]}
	fields, err := parseFields(lines)
	if err != nil {
		return nil, err
	}
	if r.noBody = has(fields, bodyNotKept); r.noBody && len(r.body) > 0 {
		return nil, errResponse
	}
	hops := hopsOf(fields)
	r.head = fields[:0]
	for _, f := range fields {
		if !isReplayed(f.canonical, nil, hops) {
			continue
		}
		if last := len(r.head) - 1; last >= 0 && r.head[last].canonical == f.canonical {
			r.head[last].values = append(r.head[last].values, f.values...)
		} else {
			r.head = append(r.head, f)
		}
	}
	return r, nil
}

// parseFields parses the lines of a header into fields with one value each.
func parseFields(lines string) ([]field, error) {
	if lines == "" {
		return nil, nil
	}
	n := strings.Count(lines, "\r\n") + 1
	fields, all := make([]field, n), make([]string, n)
	for i := range fields {
		var line string
		line, lines, _ = strings.Cut(lines, "\r\n")
		name, value, ok := strings.Cut(line, ":")
		if !ok || !validHeader(name) || strings.ContainsAny(value, "\r\n") {
			return nil, errResponse
		}
		name, all[i] = textproto.CanonicalMIMEHeaderKey(name), textproto.TrimString(value)
		fields[i] = field{name, name, all[i : i+1 : i+1]}
	}
	sortFields(fields)
	return fields, nil
}

// replay sends a recorded response.
func (r *recording) replay(w http.ResponseWriter) {
	header := w.Header()
	for _, f := range r.head {
		join(header, f.canonical, f.values)
	}
	if !has(r.head, "Content-Type") {
		remove(header, "Content-Type")
		header["Content-Type"] = nil // the original had none, so net/http must not detect one
	}
	header[ReplayedHeader] = yes
	w.WriteHeader(r.status)
	if len(r.body) > 0 {
		_, _ = w.Write(r.body) // the client may have disconnected
	}
}

var yes = []string{"true"}
