package console

import (
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/memstore"
)

func TestMain(m *testing.M) { logtest.Main(m) }

const (
	lookToken   = "look-0123456789abcdef"
	decideToken = "decide-0123456789abcdef"
	adminToken  = "admin-0123456789abcdef"
)

// cookieHere is the name of the cookie at localhost:9470.
const cookieHere = cookieName + "_9470"

func people() []Person {
	return []Person{{"lou", Look, lookToken}, {"dee", Decide, decideToken}, {"ada", Administer, adminToken}}
}

// open returns a console of o, with a store in memory unless o has stores.
func open(t *testing.T, o Options) *Console {
	t.Helper()
	return openBy(t, time.Now, o)
}

func openBy(t *testing.T, clock func() time.Time, o Options) *Console {
	t.Helper()
	if len(o.Stores) == 0 {
		o.Stores = []Store{{Name: "shop", Store: memstore.New(nil)}}
	}
	if o.People == nil && o.Proxy == nil {
		o.People = people()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c, err := newBy(clock, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// browser is one without JavaScript: it has cookies, and fills in forms.
type browser struct {
	t       *testing.T
	to      http.Handler
	cookies map[string]*http.Cookie
	at      string // the path of the page
	page    *element
	status  int
	header  http.Header
	text    string
	prepare func(*http.Request) // an attacker's changes
}

func visit(t *testing.T, to http.Handler) *browser {
	return &browser{t: t, to: to, cookies: make(map[string]*http.Cookie)}
}

// as returns a browser in which a person has signed in.
func as(t *testing.T, to http.Handler, token string) *browser {
	t.Helper()
	b := visit(t, to)
	b.get("/")
	b.fill("/sign-in", "token", token)
	if b.status != http.StatusOK {
		t.Fatalf("signing in ended with %d:\n%s", b.status, b.text)
	}
	return b
}

func (b *browser) get(path string) *browser {
	b.t.Helper()
	return b.do(httptest.NewRequest(http.MethodGet, "http://localhost:9470"+path, nil))
}

func (b *browser) post(path string, form url.Values) *browser {
	b.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://localhost:9470"+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", "http://localhost:9470")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return b.do(r)
}

func (b *browser) do(r *http.Request) *browser {
	b.t.Helper()
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	if b.prepare != nil {
		b.prepare(r)
	}
	w := httptest.NewRecorder()
	b.to.ServeHTTP(w, r)
	res := w.Result()
	for _, c := range res.Cookies() {
		if b.cookies[c.Name] = c; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	b.at, b.status, b.header, b.text = r.URL.RequestURI(), res.StatusCode, res.Header, string(body)
	if got := b.header.Get("Content-Security-Policy"); got != policy {
		b.t.Errorf("%s %s has the policy %q", r.Method, r.URL, got)
	}
	if to := res.Header.Get("Location"); to != "" {
		if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") {
			b.t.Fatalf("%s leads to %q", r.URL, to)
		}
		return b.get(to)
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") && r.Method != http.MethodHead {
		b.page = b.parse(b.text)
	}
	return b
}

// fill sends the first form whose action begins with a path, with what is in it
// and the pairs.
func (b *browser) fill(action string, pairs ...string) *browser {
	b.t.Helper()
	form := b.form(action)
	if form == nil {
		b.t.Fatalf("%s has no form for %s:\n%s", b.at, action, b.text)
	}
	values := form.values()
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	to, _, _ := strings.Cut(form.attr["action"], "#")
	if form.attr["method"] == "post" {
		return b.post(to, values)
	}
	return b.get(to + "?" + values.Encode())
}

func (b *browser) form(action string) *element {
	for _, f := range b.page.all("form") {
		if strings.HasPrefix(f.attr["action"], action) {
			return f
		}
	}
	return nil
}

// follow follows the first link whose text contains a text.
func (b *browser) follow(text string) *browser {
	b.t.Helper()
	for _, a := range b.page.all("a") {
		if strings.Contains(a.content(), text) {
			return b.get(a.attr["href"])
		}
	}
	b.t.Fatalf("%s has no link %q:\n%s", b.at, text, b.page.content())
	return b
}

// shows requires texts on the page.
func (b *browser) shows(texts ...string) *browser {
	b.t.Helper()
	content := b.page.content()
	for _, text := range texts {
		if !strings.Contains(content, text) {
			b.t.Errorf("%s (%d) does not show %q:\n%s", b.at, b.status, text, content)
		}
	}
	return b
}

// hides requires that texts are not on the page.
func (b *browser) hides(texts ...string) *browser {
	b.t.Helper()
	for _, text := range texts {
		if strings.Contains(b.text, text) {
			b.t.Errorf("%s (%d) shows %q", b.at, b.status, text)
		}
	}
	return b
}

func (b *browser) is(status int) *browser {
	b.t.Helper()
	if b.status != status {
		b.t.Errorf("%s has the status %d, want %d:\n%s", b.at, b.status, status, b.text)
	}
	return b
}

// element is a part of a page; a text has no name.
type element struct {
	name string
	attr map[string]string
	text string
	in   []*element
}

// parse parses a page and holds it to what all pages keep: no inline script or
// style, labels, headings, and a size.
func (b *browser) parse(text string) *element {
	b.t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	root := &element{}
	open := []*element{root}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			b.t.Fatalf("%s is not well-formed: %v\n%s", b.at, err, text)
		}
		top := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attr: make(map[string]string)}
			for _, a := range token.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			top.in, open = append(top.in, e), append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			top.in = append(top.in, &element{text: string(token)})
		}
	}
	for _, problem := range root.problems() {
		b.t.Errorf("%s: %s", b.at, problem)
	}
	if len(text) > 40<<10 && b.status == 200 {
		b.t.Logf("%s has %d bytes", b.at, len(text))
	}
	return root
}

func (e *element) problems() (all []string) {
	labelled, ids := make(map[string]bool), make(map[string]bool)
	for _, label := range e.all("label") {
		labelled[label.attr["for"]] = true
		for _, input := range label.all("input") {
			labelled[input.attr["id"]] = input.attr["id"] != ""
			input.attr["aria-label"] = label.content()
		}
	}
	e.walk(func(e *element) {
		for name, value := range e.attr {
			leads := name == "href" || name == "src" || name == "action"
			if name == "style" || strings.HasPrefix(name, "on") || leads && strings.HasPrefix(strings.ToLower(strings.TrimSpace(value)), "javascript:") {
				all = append(all, fmt.Sprintf("<%s %s=%q>", e.name, name, value))
			}
		}
		if id := e.attr["id"]; id != "" {
			if ids[id] {
				all = append(all, "two elements have the id "+id)
			}
			ids[id] = true
		}
		switch e.name {
		case "style":
			all = append(all, "inline style")
		case "script":
			if e.attr["src"] == "" || strings.TrimSpace(e.content()) != "" {
				all = append(all, "inline script")
			}
		case "input", "select", "textarea":
			if e.attr["type"] != "hidden" && !labelled[e.attr["id"]] && e.attr["aria-label"] == "" {
				all = append(all, fmt.Sprintf("no label for <%s name=%q>", e.name, e.attr["name"]))
			}
		case "table":
			if len(e.all("caption")) != 1 || len(e.all("th")) == 0 {
				all = append(all, "a table without a caption or headers")
			}
		case "img":
			if _, ok := e.attr["alt"]; !ok {
				all = append(all, "an image without alt")
			}
		case "svg":
			if e.attr["aria-hidden"] != "true" && (e.attr["role"] != "img" || e.attr["aria-label"] == "") {
				all = append(all, "a chart without a text")
			}
		case "form":
			if e.attr["method"] == "post" && e.attr["action"] != "" && !strings.HasSuffix(e.attr["action"], "/sign-in") && e.values().Get(tokenField) == "" {
				all = append(all, "a form without its token: "+e.attr["action"])
			}
		}
	})
	if len(e.all("h1")) != 1 || len(e.all("main")) != 1 || len(e.all("title")) != 1 {
		all = append(all, "not one h1, main and title")
	}
	return all
}

func (e *element) walk(do func(*element)) {
	do(e)
	for _, in := range e.in {
		in.walk(do)
	}
}

func (e *element) all(name string) (all []*element) {
	e.walk(func(e *element) {
		if e.name == name {
			all = append(all, e)
		}
	})
	return all
}

func (e *element) content() string {
	var text strings.Builder
	e.walk(func(e *element) { text.WriteString(e.text + " ") })
	return strings.Join(strings.Fields(text.String()), " ")
}

// values are the fields of a form as it is.
func (e *element) values() url.Values {
	v := make(url.Values)
	for _, in := range e.all("input") {
		kind := in.attr["type"]
		if _, checked := in.attr["checked"]; (kind == "checkbox" || kind == "radio") && !checked {
			continue
		}
		if in.attr["name"] != "" {
			v.Set(in.attr["name"], in.attr["value"])
		}
	}
	for _, in := range e.all("textarea") {
		v.Set(in.attr["name"], in.content())
	}
	return v
}
