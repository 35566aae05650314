package prove

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// line is a request in a file.
type line struct {
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Header map[string]string `json:"header"`
	Body   json.RawMessage   `json:"body"`
	Key    *string           `json:"key"`
	ID     *string           `json:"id"`
}

// ErrFile is wrapped by an error about a line of a file of requests.
var ErrFile = errors.New("it is not a request")

// ReadRequests reads a file with a request in JSON on each line. What a line does not
// say, the template says. The errors name the line.
func ReadRequests(name string, text []byte, template Request) ([]Request, error) {
	var all []Request
	keys, ids := map[string]string{}, map[string]string{} // and their places
	number := 0
	for row := range bytes.Lines(text) {
		number++
		row = bytes.TrimSpace(row)
		if len(row) == 0 {
			continue
		}
		t := template
		t.Place = fmt.Sprintf("%s:%d", name, number)
		if err := t.read(row); err != nil {
			return nil, t.in(err)
		}
		for _, own := range []struct {
			what, text string
			known      map[string]string
		}{{"key", t.key(), keys}, {"id", t.name(), ids}} {
			if isFresh(own.text) {
				continue
			}
			if other, ok := own.known[own.text]; ok {
				return nil, t.in(fmt.Errorf("%w of its own: its %s %q is that of %s", ErrFile, own.what, own.text, other))
			}
			own.known[own.text] = t.Place
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no line with a request", name)
	}
	return all, nil
}

// read changes a template to what a line says.
func (t *Request) read(row []byte) error {
	var l line
	d := json.NewDecoder(bytes.NewReader(row))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return fmt.Errorf("%w: %s", ErrFile, inWords(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: there is more after the end of the object", ErrFile)
	}
	if l.Method != "" {
		t.Method = l.Method
	}
	if l.Path != "" {
		t.Path = l.Path
	}
	switch {
	case t.Method == "":
		return fmt.Errorf("%w: it has no method, and there is no --request", ErrFile)
	case !strings.HasPrefix(t.Path, "/"):
		return fmt.Errorf("%w: its path is %q, and has to begin with /", ErrFile, t.Path)
	}
	if t.Header = t.Header.Clone(); t.Header == nil {
		t.Header = http.Header{}
	}
	for name, value := range l.Header {
		t.Header.Set(name, value)
	}
	if err := t.readBody(l.Body); err != nil {
		return err
	}
	for _, name := range []struct {
		what string
		from *string
		to   *string
	}{{"key", l.Key, &t.Key}, {"id", l.ID, &t.ID}} {
		if name.from == nil {
			continue
		}
		if *name.from == "" {
			return fmt.Errorf("%w: its %s is empty: leave it out, or write one", ErrFile, name.what)
		}
		*name.to = *name.from
	}
	_, err := http.NewRequest(t.Method, "http://localhost"+t.Path, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	return onlyKnown(map[string]string{"id": ""}, t.texts())
}

// inWords says what is wrong with the JSON of a line.
func inWords(err error) string {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "unexpected end of JSON"
	case !errors.As(err, &kind):
		return strings.TrimPrefix(err.Error(), "json: ")
	case kind.Field == "":
		return fmt.Sprintf("it is of the kind %s, and has to be an object", kind.Value)
	case kind.Field == "header":
		return fmt.Sprintf("its %s is of the kind %s, and has to be an object of strings", kind.Field, kind.Value)
	}
	return fmt.Sprintf("its %s is of the kind %s, and has to be a string", kind.Field, kind.Value)
}

// readBody takes a string as text, and anything else as JSON.
func (t *Request) readBody(body json.RawMessage) error {
	if len(body) == 0 {
		return nil
	}
	t.Body = string(body)
	if body[0] == '"' {
		if err := json.Unmarshal(body, &t.Body); err != nil {
			return err
		}
	}
	if t.Header.Get("Content-Type") == "" {
		t.Header.Set("Content-Type", "application/json")
	}
	return nil
}
