package asking

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/effectively-once/once/internal/name"
)

// Kind is the kind of an answer.
type Kind string

const (
	Done     Kind = "done"      // it happened; duplicates get Result
	Rejected Kind = "rejected"  // it was rejected; duplicates get Result
	NotFound Kind = "not_found" // there is no trace of it
	Pending  Kind = "pending"   // it exists and has not ended
	NotKnown Kind = "unknown"   // it cannot be determined now
)

// Answer is a valid answer.
type Answer struct {
	Kind   Kind
	Result json.RawMessage // Done and Rejected only
	Note   string          // for people
}

const maxNote = 200

// parse reads the answer to the question about a key. It is strict, because a
// misspelt answer could have meant anything.
func parse(text []byte, key string) (a Answer, err error) {
	if !utf8.Valid(text) {
		return a, errors.New("it is not UTF-8")
	}
	fields, err := fieldsOf(text)
	if err != nil {
		return a, err
	}
	kind, of, note := "", "", ""
	for name, into := range map[string]*string{"answer": &kind, "key": &of, "note": &note} {
		given, ok := fields[name]
		if !ok {
			continue
		}
		if len(given) == 0 || given[0] != '"' { // a null would leave it unchanged
			return a, fmt.Errorf("the field %q is not a string", name)
		}
		if err := json.Unmarshal(given, into); err != nil {
			return a, fmt.Errorf("the field %q is not a string", name)
		}
	}
	result, hasResult := fields["result"]
	a = Answer{Kind: Kind(kind), Note: name.Line(note, maxNote)}
	switch {
	case of == "":
		return a, errors.New("it has no key: return the key of the question")
	case of != key:
		return a, errors.New("its key is not the key of the question")
	}
	switch a.Kind {
	case Done, Rejected:
		if !hasResult {
			return a, fmt.Errorf("%q needs a result, if only null", kind)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, result); err != nil {
			return a, err
		}
		a.Result = compact.Bytes()
	case NotFound, Pending, NotKnown:
		if hasResult {
			return a, fmt.Errorf("%q has a result: is it done, or rejected?", kind)
		}
	default:
		return a, fmt.Errorf("the answer is %.40q: it is one of done, rejected, not_found, pending and unknown", kind)
	}
	return a, nil
}

// fieldsOf returns the fields of an object. Each must be known and occur once.
// Package json would accept duplicates and other capitalisation.
func fieldsOf(text []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	fields := make(map[string]json.RawMessage)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, errors.New("it is not JSON")
		}
		name, _ := token.(string)
		switch name {
		case "answer", "key", "note", "result":
		default:
			return nil, fmt.Errorf("there is no field %.40q", name)
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("the field %q is there twice", name)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errors.New("it is not JSON")
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("it is not JSON")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("the JSON object is followed by something else")
	}
	return fields, nil
}
