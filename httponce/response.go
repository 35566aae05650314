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

	key  [16]byte        // of the request
	only map[string]bool // the headers to record; nil: all that may be
}

// Outcome returns the response as it is recorded, unsealed. Pass it to
// [once.MarkDone] to settle a request whose outcome is unknown.
func (r *Response) Outcome() (once.Outcome, error) { return codec{}.Encode(r) }

// codec writes a response in the format of HTTP/1.1: status line, headers, body.
// People and tools can read it. The version in the status line is the version
// of this format.
type codec struct{ ring *Ring }

const (
	plainType  = "application/http"
	sealedType = plainType + "; sealed="
)

// Encode encodes a response, sealed if the ring has a secret.
func (c codec) Encode(r *Response) (once.Outcome, error) {
	if r == nil {
		return once.Outcome{}, errors.New("httponce: there is no response")
	}
	text, err := r.append(nil)
	if err != nil || !c.ring.seals() {
		return once.Outcome{Body: text, ContentType: plainType}, err
	}
	sealed, id := c.ring.seal(text, r.key)
	return once.Outcome{Body: sealed, ContentType: sealedType + id}, nil
}

// Decode decodes a response.
func (c codec) Decode(out once.Outcome) (*Response, error) {
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

func (r *Response) append(b []byte) ([]byte, error) {
	if r.Status < 200 || r.Status > 999 {
		return nil, fmt.Errorf("httponce: %d is not the status of a response", r.Status)
	}
	b = slices.Grow(b, 64+64*len(r.Header)+len(r.Body))
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = append(b, "\r\n"...)
	var few [8]field // on the stack
	for _, f := range forReplay(few[:0], r.Header, r.only) {
		if !validHeader(f.canonical) {
			return nil, fmt.Errorf("httponce: %q is not the name of a header", f.canonical)
		}
		for _, value := range f.values {
			b = append(append(append(append(b, f.canonical...), ": "...), oneLine(value)...), "\r\n"...)
		}
	}
	if r.NoBody {
		return append(b, bodyNotKept+": 1\r\n\r\n"...), nil
	}
	return append(append(b, "\r\n"...), r.Body...), nil
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
func parseResponse(text []byte) (*Response, error) {
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
	r := &Response{Status: code, Body: text[end+4:]}
	if r.Header, err = parseHeader(lines); err != nil {
		return nil, err
	}
	if _, r.NoBody = r.Header[bodyNotKept]; r.NoBody && len(r.Body) > 0 {
		return nil, errResponse
	}
	hops := r.Header["Connection"]
	for name := range r.Header {
		if neverReplayed[name] || isHop(hops, name) {
			delete(r.Header, name)
		}
	}
	return r, nil
}

// parseHeader parses the lines of a header.
func parseHeader(lines string) (http.Header, error) {
	header := make(http.Header)
	all := make([]string, 0, strings.Count(lines, "\r\n")+1) // values, most of them the only one of a name
	for lines != "" {
		var line string
		line, lines, _ = strings.Cut(lines, "\r\n")
		name, value, ok := strings.Cut(line, ":")
		if !ok || !validHeader(name) || strings.ContainsAny(value, "\r\n") {
			return nil, errResponse
		}
		name, value = textproto.CanonicalMIMEHeaderKey(name), textproto.TrimString(value)
		if before, set := header[name]; set {
			header[name] = append(before, value)
			continue
		}
		all = append(all, value)
		header[name] = slices.Clip(all[len(all)-1:])
	}
	return header, nil
}

// replay sends a recorded response.
func (r *Response) replay(w http.ResponseWriter) {
	header := w.Header()
	for name, values := range r.Header {
		join(header, name, values)
	}
	if _, typed := r.Header["Content-Type"]; !typed {
		remove(header, "Content-Type")
		header["Content-Type"] = nil // the original had none, so net/http must not detect one
	}
	header[ReplayedHeader] = yes
	w.WriteHeader(r.Status)
	if len(r.Body) > 0 {
		_, _ = w.Write(r.Body) // the client may have disconnected
	}
}

var yes = []string{"true"}
