package httponce

import (
	"bytes"
	"crypto/sha256"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once"
)

// FuzzKey: every value of the header is rejected, or is a valid key, which is
// the same in both forms.
func FuzzKey(f *testing.F) {
	for _, value := range []string{"", `"`, `""`, `"a"`, "a", `"a\"b"`, `"a\b"`, `"a";p=1`, `"a"  `, `"a", "b"`, "a,b", "a b", "\x00", "é", `"é"`, "\"a\r\n\"", strings.Repeat("x", 256),
		`"` + strings.Repeat("x", 255) + `"`, `" "`, "?1", ":YWJj:", "1.5", `("a")`, `"a";"b"`, `"\\"`, "@1659578233", `%"a"`, `"a";x="\""`} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := parseKey([]string{value})
		if err != nil {
			if key != "" {
				t.Fatalf("%q is refused, and is the key %q", value, key)
			}
			return
		}
		if len(key) < 1 || len(key) > 255 || strings.Trim(key, printable) != "" {
			t.Fatalf("%q is the key %q", value, key)
		}
		if err := (once.Key{Scope: "s", Operation: "o", ID: key}).Validate(); err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		written, err := formatKey(key)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", key, err)
		}
		if again, err := parseKey([]string{written}); err != nil || again != key {
			t.Fatalf("%q is written as %q, which is the key %q, %v", key, written, again, err)
		}
		if bare, err := parseKey([]string{key}); err == nil && key[0] != '"' && bare != key {
			t.Fatalf("bare, %q is %q", key, bare)
		}
		if _, err := parseKey([]string{value, value}); err == nil {
			t.Fatal("two headers are one key")
		}
		if joined, err := parseKey([]string{value + ", " + value}); err == nil && joined == key {
			t.Fatalf("two headers that a proxy has joined are the key %q", joined)
		}
	})
}

var printable = func() string {
	var all []byte
	for b := byte(' '); b <= '~'; b++ {
		all = append(all, b)
	}
	return string(all)
}()

// FuzzRecord: every record is rejected, or is a response that survives another
// round trip.
func FuzzRecord(f *testing.F) {
	for _, text := range []string{"", "HTTP/1.1 200\r\n\r\n", "HTTP/1.1 200\r\n\r\nbody", "HTTP/1.1 201\r\nLocation: /a\r\nLink: a\r\nLink: b\r\n\r\nx", "HTTP/1.1 200\r\nOnce-Body-Not-Kept: 1\r\n\r\n",
		"HTTP/1.1 200\r\nOnce-Body-Not-Kept: 1\r\n\r\nbody", "HTTP/1.1 200\r\na:b: c\r\n\r\n", "HTTP/1.1 200\r\nA: b\nC: d\r\n\r\n", "HTTP/1.1 099\r\n\r\n", "HTTP/1.1 +20\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200\r\nA:\r\n\r\n", "HTTP/1.1 200\r\n: b\r\n\r\n", "HTTP/1.1 200\r\nA: \r\n\r\n", "HTTP/1.1 200\r\n B: c\r\n\r\n", "HTTP/1.1 200\r\nA:  b \r\n\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseResponse(text)
		if err != nil {
			return
		}
		if r.status < 200 || r.status > 999 || r.noBody && len(r.body) > 0 {
			t.Fatalf("%q is %+v", text, r)
		}
		for _, f := range r.head {
			if strings.ContainsAny(f.canonical+strings.Join(f.values, ""), "\r\n") {
				t.Fatalf("%q has a line break in %s: %q", text, f.canonical, f.values)
			}
		}
		wantSame(t, r)
	})
}

// FuzzRoundTrip: a recorded response is replayed unchanged, plain and sealed.
func FuzzRoundTrip(f *testing.F) {
	f.Add(200, "Location", "/a", "Link", "b", []byte("body"), false)
	f.Add(204, "", "", "", "", []byte{}, false)
	f.Add(200, "Link", "a", "Link", "b", []byte("\r\n\r\nHTTP/1.1 200\r\n\r\n"), false)
	f.Add(303, "Location", "/a\r\nSet-Cookie: evil=1\r\n\r\nbody", "Link", "\n", []byte("x"), true)
	f.Add(200, "Once-Body-Not-Kept", "1", "Content-Type", "\x00", []byte("x"), false)
	ring, err := NewRing(Secret{ID: "a", Bytes: bytes.Repeat([]byte("a"), 32)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, status int, name1, value1, name2, value2 string, body []byte, notKept bool) {
		r := &recording{status: status, body: body, noBody: notKept, only: make(map[string]bool)}
		r.key[0] = 7
		header, want := make(http.Header), make(http.Header)
		for _, h := range [][2]string{{name1, value1}, {name2, value2}} {
			name := http.CanonicalHeaderKey(h[0])
			if !validHeader(name) || neverReplayed[name] {
				continue
			}
			r.only[name] = true
			header.Add(name, h[1])
			want.Add(name, strings.Trim(strings.NewReplacer("\r", " ", "\n", " ").Replace(h[1]), " \t"))
		}
		r.head = fieldsOf(header)
		for _, c := range []codec{{}, {ring}} {
			out, err := c.Encode(r)
			if ok := status >= 200 && status <= 999; (err == nil) != ok {
				t.Fatalf("%d: %v", status, err)
			}
			if err != nil {
				return
			}
			back, err := c.Decode(out)
			if err != nil {
				t.Fatalf("%q cannot be read: %v", out.Body, err)
			}
			if back.status != status || back.noBody != notKept || !equalFields(back.head, fieldsOf(want)) || !notKept && !bytes.Equal(back.body, body) {
				t.Fatalf("%+v came back as %+v", r, back)
			}
			if c.ring != nil && back.key != r.key {
				t.Fatal("it answers another key")
			}
		}
	})
}

// wantSame writes a response that was read, and reads it again.
func wantSame(t *testing.T, r *recording) {
	t.Helper()
	r.only = make(map[string]bool)
	for _, f := range r.head {
		r.only[f.canonical] = true
	}
	text, err := r.append(nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseResponse(text)
	if err != nil {
		t.Fatalf("%q was written, and cannot be read: %v", text, err)
	}
	if again.status != r.status || again.noBody != r.noBody || !bytes.Equal(again.body, r.body) || !equalFields(again.head, r.head) {
		t.Fatalf("%+v was written as %q", r, text)
	}
}

func equalFields(a, b []field) bool {
	return slices.EqualFunc(a, b, func(a, b field) bool {
		return a.canonical == b.canonical && slices.Equal(a.values, b.values)
	})
}

// FuzzDigest: requests that differ in any part have different digests.
func FuzzDigest(f *testing.F) {
	f.Add("POST", "/a", "b=1", "c", "POST", "/ab", "=1", "c")
	f.Add("POST", "/a", "", "c", "POST", "/a", "c", "")
	f.Add("PUT", "/", "x", "\x00\x00\x00\x01y", "PUT", "/", "x", "y")
	f.Fuzz(func(t *testing.T, m1, p1, q1, b1, m2, p2, q2, b2 string) {
		same := m1 == m2 && p1 == p2 && q1 == q2 && b1 == b2
		if got := bytes.Equal(digestOf(m1, p1, q1, b1), digestOf(m2, p2, q2, b2)); got != same {
			t.Fatalf("%q and %q: %v", []string{m1, p1, q1, b1}, []string{m2, p2, q2, b2}, got)
		}
	})
}

func digestOf(method, path, query, body string) []byte {
	r := &http.Request{Method: method, URL: urlOf(path, query)}
	x := &exchange{settings: &settings{}, r: r, body: requestBody{sum: sha256.Sum256([]byte(body))}}
	_ = x.digest() // fails only with a Fingerprint
	return x.mark[:]
}

// urlOf is a URL whose path is escaped as it was sent.
func urlOf(path, query string) *url.URL {
	return &url.URL{Path: path, RawQuery: query}
}
