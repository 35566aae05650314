package console

import (
	"context"
	"net/http"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
)

const (
	messagesOnPage = 50
	messageTime    = 5 * time.Second // for what a page about messages asks of a store
)

// anchor is a link of several, of which one is current.
type anchor struct {
	Text, URL string
	Current   bool
}

// capable returns the store that a page is about, with a capability. Without a name
// it is the first store that has the capability. ok is false if none has it, if the
// named one does not, or if no store has the name.
func capable[Capability any](v *view, called string) (s Store, has Capability, ok bool) {
	for _, s := range v.o.Stores {
		if called != "" && called != s.Name {
			continue
		}
		if has, ok := once.As[Capability](s.Store); ok {
			return s, has, true
		}
	}
	return s, has, false
}

// tabs are the stores that have a capability, as links to the same page, if there
// are several to choose from.
func tabs[Capability any](v *view, current, path string, pairs ...string) (all []anchor) {
	for _, s := range v.o.Stores {
		if _, ok := once.As[Capability](s.Store); ok {
			all = append(all, anchor{s.Name, v.link(path, append([]string{"store", s.Name}, pairs...)...), s.Name == current})
		}
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// absence is a page about what no store has, or what the named one does not have.
type absence struct {
	Heading string
	What    string // such as: shelf for messages
	Who     string // which stores of this project would have one
	Store   string // the named store; empty: all
	Other   string // a link to the page without the name
}

// lacks renders a page that says that a store lacks something.
func (v *view) lacks(nav, path string, a absence) {
	if a.Store != "" {
		known := false
		for _, s := range v.o.Stores {
			known = known || s.Name == a.Store
		}
		if len(v.o.Stores) > 1 {
			a.Other = v.link(path)
		}
		if !known {
			v.fail(http.StatusNotFound, "There is no store "+legible.Line(a.Store), "The link may be of another console. Choose the page from the navigation.")
			return
		}
	}
	v.render(http.StatusOK, "lacks", page{Title: a.Heading, Nav: nav, Body: a})
}

// silent says that a store did not answer. Nothing was changed.
func (v *view) silent(s Store, err error) {
	v.log.WarnContext(v.r.Context(), "console: a store does not answer", "store", s.Name, "error", err)
	v.fail(http.StatusServiceUnavailable, "The store "+s.Name+" does not answer",
		"Reload the page in a moment. If it stays like this, look at the database and at once doctor. The store says: "+legible.Text(err.Error()))
}

// within bounds what a page may take.
func (v *view) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(v.r.Context(), messageTime)
}

// ago says how long ago something was, by this machine's clock.
func (c *Console) ago(t time.Time) string { return legible.Ago(c.now().Sub(t)) }
