package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
)

//go:embed assets pages
var embedded embed.FS

// file is a file of this package that anybody may read.
type file struct {
	kind, tag string
	content   []byte
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.tag)
	h.Set("Cache-Control", "private, max-age=31536000, immutable") // its address has its digest
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
}

// load prepares the pages and the files.
func (c *Console) load() error {
	c.files, c.pages = make(map[string]file), make(map[string]*template.Template)
	address := make(map[string]string)
	for at, kind := range map[string]string{"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		content, err := embedded.ReadFile("assets/" + at)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		short := hex.EncodeToString(sum[:8])
		path := "/assets/" + short + "-" + at
		c.files[path] = file{kind, `"` + short + `"`, content}
		address[at] = c.base + path
	}
	funcs := template.FuncMap{
		"asset": func(of string) string { return address[of] },
		"link":  c.link,
		"key":   c.keyLink,
		"id":    legible.Line,
		"text":  legible.Text,
		"lines": legible.Lines,
		"span":  legible.Span,
		"ago":   ago,
		"bytes": func(n int) string { return legible.Bytes(int64(n)) },
		"stamp": stamp,
		"exact": exactTime,
		"plus":  plus,
		"inc":   func(n int) int { return n + 1 },
	}
	shared := template.New("").Funcs(funcs).Option("missingkey=error")
	if _, err := shared.ParseFS(embedded, "pages/layout.html", "pages/parts.html"); err != nil {
		return err
	}
	names, err := fs.Glob(embedded, "pages/*.html")
	if err != nil {
		return err
	}
	for _, at := range names {
		of := strings.TrimSuffix(strings.TrimPrefix(at, "pages/"), ".html")
		if of == "layout" || of == "parts" {
			continue
		}
		t, err := shared.Clone()
		if err == nil {
			_, err = t.ParseFS(embedded, at)
		}
		if err != nil {
			return err
		}
		c.pages[of] = t
	}
	return nil
}

// page is what the layout needs to know, and the content.
type page struct {
	Title string
	Nav   string // the entry of the navigation that is current
	Find  string // what the search box has in it
	Notes []note
	Live  string // the URL of the events that keep it up to date, if any
	Body  any
}

// note is something to know about a page.
type note struct {
	Bad, Good      bool
	Text           string
	More, MoreText string // a link
}

// frame is a page with who sees it.
type frame struct {
	page
	Who    *Person
	Write  bool
	Signed bool // by a token: they can sign out
	Token  string
	Stores []Store
	counts map[string]reading // what waits for a person, as the sampler knows it
}

// navCount is the number beside a link of the navigation.
type navCount struct{ Name, Short, Long string }

// maxNavCount is the largest number for which a link has a place.
const maxNavCount = 99

// Count returns the number beside the link to what a gauge counts. It is empty if
// nothing waits, or nothing is known.
func (f frame) Count(name string) navCount {
	c, r := navCount{Name: name}, f.counts[name]
	if r.Known && r.N > 0 {
		c.Long = plus(r.N, r.More)
		if c.Short = c.Long; r.N > maxNavCount {
			c.Short = plus(maxNavCount, true)
		}
	}
	return c
}

func (v *view) frame(p page) frame {
	return frame{page: p, Who: v.who, Write: v.o.Write, Signed: v.here, Token: v.token, Stores: v.o.Stores, counts: v.sampler.counted()}
}

// render writes a page. It is complete before its first byte is sent.
func (v *view) render(status int, of string, p page) {
	var out bytes.Buffer
	p.Notes = append(v.notes, p.Notes...)
	if err := v.pages[of].ExecuteTemplate(&out, "layout", v.frame(p)); err != nil {
		v.log.ErrorContext(v.r.Context(), "console: a page cannot be rendered", "page", of, "error", err)
		http.Error(v.w, "The page cannot be rendered: see the log.", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	if v.r.Method != http.MethodHead {
		_, _ = v.w.Write(out.Bytes()) // the browser may be gone
	}
}

type failure struct{ What, Next string }

// fail says what went wrong, and what to do.
func (v *view) fail(status int, what, next string) {
	v.render(status, "error", page{Title: what, Body: failure{what, next}})
}

// link returns the URL of a path with parameters, of which empty ones are left out.
func (c *Console) link(path string, pairs ...string) string {
	q := make(url.Values)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return c.base + path
	}
	return c.base + path + "?" + q.Encode()
}

// keyRef is a key of a store.
type keyRef struct {
	Store string
	once.Key
}

func (c *Console) keyLink(k keyRef) string {
	return c.link("/key", "store", k.Store, "scope", k.Scope, "operation", k.Operation, "id", k.ID)
}

// ago formats how long ago something was. What has just happened is not measured.
func ago(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	return legible.Ago(d)
}

// exactTime formats a time for people, to the second.
func exactTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// stamp formats a time for programs.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// plus formats a number that was counted up to a bound.
func plus(n int, more bool) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	if more {
		text += "+"
	}
	return text
}
