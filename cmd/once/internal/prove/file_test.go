package prove

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// A line says what differs from the flags.
func TestALineIsARequest(t *testing.T) {
	flags := Request{Method: "POST", Path: "/orders", Header: http.Header{"X-Shop": {"a"}}, Body: "none", KeyHeader: "K"}
	text := `{}

{"method": "PUT", "path": "/orders/7", "header": {"x-shop": "b", "X-Item": "{{id}}"}, "body": {"item": "{{id}}"}, "key": "k-{{id}}", "id": "{{id}}"}
{"body": "item={{id}}", "header": {"Content-Type": "text/plain"}, "key": "k-4"}
{"body": [1]}`
	got, err := ReadRequests("orders.jsonl", []byte(text), flags)
	if err != nil {
		t.Fatal(err)
	}
	at := func(line string, change func(*Request)) Request {
		r := flags
		r.Place, r.Header = "orders.jsonl:"+line, flags.Header.Clone()
		change(&r)
		return r
	}
	want := []Request{
		at("1", func(*Request) {}),
		at("3", func(r *Request) {
			r.Method, r.Path, r.Body, r.Key, r.ID = "PUT", "/orders/7", `{"item": "{{id}}"}`, "k-{{id}}", "{{id}}"
			r.Header = http.Header{"X-Shop": {"b"}, "X-Item": {"{{id}}"}, "Content-Type": {"application/json"}}
		}),
		at("4", func(r *Request) {
			r.Body, r.Key = "item={{id}}", "k-4"
			r.Header.Set("Content-Type", "text/plain")
		}),
		at("5", func(r *Request) {
			r.Body = "[1]"
			r.Header.Set("Content-Type", "application/json")
		}),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v\nwant\n%+v", got, want)
	}
	for i, names := range [][2]string{{"x-1", "x-1"}, {"x-1", "k-x-1"}, {"k-4", "k-4"}} {
		if r := got[i].request("x-1"); r.id != names[0] || r.key != names[1] {
			t.Errorf("%s has the ID %s and the key %s", r.of.Place, r.id, r.key)
		}
	}
	if got[0].Fresh() != true || got[2].Fresh() {
		t.Error("only a template with {{id}} in its key makes fresh requests")
	}
}

// An error names the line, and says what is wrong with it.
func TestALineThatIsNoRequest(t *testing.T) {
	for text, says := range map[string]string{
		"\n{\"key\": \"a\"}\n{\"key\": \"b\"}\n{\"key\": \"a\"}":     `f:4: it is not a request of its own: its key "a" is that of f:2`,
		`{"key": "a", "id": "x"}` + "\n" + `{"key": "b", "id": "x"}`: `f:2: it is not a request of its own: its id "x" is that of f:1`,
		`{"key": "a"} {"key": "b"}`:                                  "f:1: it is not a request: there is more after the end of the object",
		`{"keys": "a"}`:                                              `f:1: it is not a request: unknown field "keys"`,
		`{"key": 7}`:                                                 "f:1: it is not a request: its key is of the kind number, and has to be a string",
		`["a"]`:                                                      "f:1: it is not a request: it is of the kind array, and has to be an object",
		`{"key": "a"`:                                                "f:1: it is not a request: unexpected end of JSON",
		`{"key": ""}`:                                                "f:1: it is not a request: its key is empty",
		`{"path": "orders"}`:                                         `f:1: it is not a request: its path is "orders", and has to begin with /`,
		`{"method": "A B"}`:                                          `f:1: it is not a request: net/http: invalid method "A B"`,
		`{"body": {"n": "{{it}}"}}`:                                  "f:1: unknown placeholder {{it}}",
		" \n\n":                                                      "f has no line with a request",
	} {
		_, err := ReadRequests("f", []byte(text), Request{Method: "GET", Path: "/"})
		if err == nil || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%s:\n%v, want\n%s", text, err, says)
		}
	}
	if _, err := ReadRequests("f", []byte("{}"), Request{}); err == nil || !strings.Contains(err.Error(), "it has no method, and there is no --request") {
		t.Errorf("without flags: %v", err)
	}
}

// A command prints lines of both, or each in turn.
func TestACommandPrintsPairs(t *testing.T) {
	got, err := pairs("a 1\nb\n2\n a\t3 ")
	if want := map[string]int{"a": 4, "b": 2}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for text, says := range map[string]string{"a b": `printed "b" after the ID "a"`, "a 1 b": `the ID "b" without a number`} {
		if _, err := pairs(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
