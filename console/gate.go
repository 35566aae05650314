package console

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/abandon"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/internal/name"
)

// route is what a path does, and who may.
type route struct {
	role   Role // 0: anybody
	write  bool // it changes a store
	upload bool // its form may have a file
	large  bool // its form has an answer in it
	handle func(*view)
}

func (c *Console) allRoutes() map[string]map[string]route {
	get := func(of func(*view)) map[string]route {
		return map[string]route{http.MethodGet: {role: Look, handle: of}}
	}
	decide := func(method string, of func(*view)) map[string]route {
		return map[string]route{method: {role: Decide, write: true, handle: of}}
	}
	both := func(a, b map[string]route) map[string]route {
		maps.Copy(a, b)
		return a
	}
	return map[string]map[string]route{
		"/":                   get((*view).overview),
		"/find":               get((*view).find),
		"/key":                get((*view).key),
		"/key/outcome":        {http.MethodPost: {role: Decide, handle: (*view).reveal}},
		"/key/confirm":        {http.MethodPost: {role: Decide, write: true, large: true, handle: (*view).confirm}},
		"/key/settle":         {http.MethodPost: {role: Decide, write: true, large: true, handle: (*view).settle}},
		"/key/reopen/confirm": {http.MethodPost: {role: Administer, write: true, handle: (*view).confirmReopen}},
		"/key/reopen":         {http.MethodPost: {role: Administer, write: true, handle: (*view).reopen}},
		"/unknown":            get((*view).unknown),
		"/parked":             get((*view).parked),
		"/ask":                both(get((*view).showInquiry), map[string]route{http.MethodPost: {role: Decide, handle: (*view).beginInquiry}}),
		"/ask/stop":           {http.MethodPost: {role: Decide, handle: (*view).stopInquiry}},
		"/ask/answer":         {http.MethodPost: {role: Decide, handle: (*view).revealReply}},
		"/ask/confirm":        {http.MethodPost: {role: Decide, write: true, handle: (*view).confirmInquiry}},
		"/ask/settle":         {http.MethodPost: {role: Decide, write: true, handle: (*view).settleInquiry}},
		"/events":             get((*view).events),
		"/audit":              get((*view).audit),
		"/sign-in":            {http.MethodGet: {handle: (*view).askWho}, http.MethodPost: {handle: (*view).signIn}},
		"/sign-out":           {http.MethodPost: {role: Look, handle: (*view).signOut}},

		"/messages":          get((*view).shelf),
		"/messages/message":  both(get((*view).shelfMessage), map[string]route{http.MethodPost: {role: Decide, handle: (*view).shelfMessage}}),
		"/outbox":            get((*view).outbox),
		"/outbox/message":    both(get((*view).outboxMessage), map[string]route{http.MethodPost: {role: Decide, handle: (*view).outboxMessage}}),
		"/consumers":         get((*view).consumers),
		"/consumers/one":     get((*view).consumer),
		"/consumers/confirm": {http.MethodPost: {role: Administer, write: true, handle: (*view).confirmConsumer}},
		"/consumers/change":  {http.MethodPost: {role: Administer, write: true, handle: (*view).editConsumer}},
		"/change":            both(decide(http.MethodGet, (*view).change), decide(http.MethodPost, (*view).askAll)),
		"/jobs":              both(get((*view).listJobs), decide(http.MethodPost, (*view).beginJob)),
		"/job":               both(get((*view).showJob), decide(http.MethodPost, (*view).stopJob)),

		"/reconcile":        both(get((*view).reconcile), map[string]route{http.MethodPost: {role: Decide, upload: true, handle: (*view).beginComparison}}),
		"/reconcile/result": both(get((*view).showComparison), map[string]route{http.MethodPost: {role: Decide, handle: (*view).showComparison}}),
		"/reconcile/stop":   {http.MethodPost: {role: Decide, handle: (*view).stopComparison}},
		"/reconcile/settle": both(decide(http.MethodGet, (*view).askSettling), decide(http.MethodPost, (*view).askAllSettling)),
	}
}

// view is one request and who made it.
type view struct {
	*Console
	w     http.ResponseWriter
	r     *http.Request
	who   *Person // nil: nobody
	token string  // of forms
	here  bool    // who signed in here, not at a proxy
	notes []note  // for the page
	begun time.Time

	missed []string // stores of which the page does not have all
	swept  []string // stores that have found ids themselves, so that nobody reads their keys one by one

	upload *upload // nil: the form has no file
	placed bool    // this request has a place for a report
}

const (
	cookieName = "once_console"
	tokenField = "form"
	maxForm    = 4 << 20  // bytes: an outcome, coded for a form
	smallForm  = 16 << 10 // bytes of any other form
)

// policy allows no inline script and no inline style. What a store holds is
// escaped; if something were not, it could still not run.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP serves a request. All checks of access are here.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // no-referrer would make browsers hide the Origin of our own forms
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")

	v := &view{Console: c, w: w, r: r, begun: c.now()}
	defer v.recovered()
	if !c.hosts[hostOf(r.Host)] {
		v.fail(http.StatusMisdirectedRequest, "This host is not served", "The console does not answer to this host name. Add it to Hosts, or --host, if it is yours.")
		return
	}
	path := r.URL.Path
	if rest, mounted := strings.CutPrefix(path, c.base+"/"); mounted {
		path = "/" + rest
	} else if path == c.base || path == "" { // "": http.StripPrefix leaves it
		path = "/"
	}
	if file, ok := c.files[path]; ok && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		file.serve(w, r)
		return
	}
	v.who, v.token, v.here = c.whoIs(r, !isByItself(r, path))
	methods := c.routes[path]
	if methods == nil {
		v.fail(http.StatusNotFound, "There is no such page", "The address may be incomplete. Begin at the overview, or paste an id into the search box.")
		return
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	to, ok := methods[method]
	if !ok {
		var allowed []string
		for m := range methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		h.Set("Allow", strings.Join(allowed, ", "))
		v.fail(http.StatusMethodNotAllowed, "Not this way", "A page that changes something is reached by its form only. Go back and use the form.")
		return
	}
	if !v.intact() {
		v.damaged()
		return
	}
	post := method == http.MethodPost
	if post && crossOrigin(r) {
		v.fail(http.StatusForbidden, "Refused: this came from another site", "A page of another site tried to do this with your sign-in. Nothing was changed.")
		return
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	hasFile := to.upload && kind == "multipart/form-data"
	if post && !hasFile && kind != "application/x-www-form-urlencoded" {
		v.fail(http.StatusUnsupportedMediaType, "This is not a form", "Send the form of the page. Nothing was changed.")
		return
	}
	switch { // before the form is read: its fields need much more memory than its bytes
	case to.role == 0:
	case v.who == nil && post:
		v.fail(http.StatusUnauthorized, "You are not signed in", "The sign-in has ended, and nothing was changed. Sign in, open the page anew, and repeat what you did.")
		return
	case v.who == nil:
		v.askWho()
		return
	case v.who.Role < to.role:
		v.fail(http.StatusForbidden, "Your role does not allow this",
			fmt.Sprintf("It needs the role %v, and you have %v. Ask somebody with that role.", to.role, v.who.Role))
		return
	case to.write && !c.o.Write:
		v.fail(http.StatusForbidden, "The console is read-only", "Nothing was changed. Start it with Write, or --write, to allow changes.")
		return
	}
	if hasFile && post {
		defer v.leave()
		if !v.readUpload() {
			return
		}
	} else if post {
		most, text := int64(smallForm), "16 KiB"
		if to.large {
			most, text = maxForm, "4 MiB"
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		if err := r.ParseForm(); err != nil {
			v.fail(http.StatusBadRequest, "The form cannot be read", "It is damaged, or larger than "+text+". Nothing was changed.")
			return
		}
	}
	if post && to.role > 0 && !hmac.Equal([]byte(r.PostForm.Get(tokenField)), []byte(v.token)) {
		v.outOfDate()
		return
	}
	to.handle(v)
}

func (v *view) outOfDate() {
	v.fail(http.StatusForbidden, "The form is out of date", "It was made for another sign-in. Nothing was changed. Open the page anew, and repeat what you did.")
}

// intact reports whether all parameters of a URL can be read, and each is there
// once. One that is left out because it cannot be read makes a selection larger.
func (v *view) intact() bool {
	q, err := url.ParseQuery(v.r.URL.RawQuery)
	for name, values := range q {
		if len(values) > 1 || !isText([]byte(name)) || !isText([]byte(values[0])) {
			return false
		}
	}
	return err == nil
}

// recovered says that a page could not be made, if a store panicked.
func (v *view) recovered() {
	cause := recover()
	if cause == nil {
		return
	}
	if cause == http.ErrAbortHandler {
		panic(cause)
	}
	v.panicked("", cause)
	v.fail(http.StatusInternalServerError, "This page cannot be made", "Something failed, see the log. If you were changing something, look whether it was changed.")
}

// panicked logs a panic, and returns it as an error. That of a store, or of what the
// program has given to the console, ends neither a goroutine of the console nor the
// program that the console is part of. Only the log has what it panicked with, which
// may be an address with a password in it.
func (c *Console) panicked(store string, cause any) error {
	attrs := []any{"panic", cause, "stack", string(debug.Stack())}
	if store != "" {
		attrs = append(attrs, "store", store)
	}
	c.log.Error("console: a store panicked", attrs...)
	return errors.New("the store panicked, see the log")
}

// callsAtOnce limits the requests of one store for pages, with those that were given
// up.
const callsAtOnce = 32

// guarded makes a request of a store for a page. A panic is an error. It does not
// wait after ctx ends: not every client listens to that. A request that goes on then
// keeps its place, so that a store which never answers has a bounded number of them,
// however many people look. Without a place until ctx ends, the request is not made.
func guarded[T any](ctx context.Context, c *Console, store string, request func() (T, error)) (none T, err error) {
	places := c.calls[store] // nil: the request is of no store
	if places != nil {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return none, fmt.Errorf("%d requests of it are under way, and none has ended: %w", cap(places), context.Cause(ctx))
		}
	}
	return contained(ctx, c, store, func() (T, error) {
		if places != nil {
			defer func() { <-places }()
		}
		return request()
	})
}

// contained is guarded for work that has a bound of its own, which it leaves when it
// ends, such as a job or an inquiry. It takes no place: whoever looks cannot keep it
// from beginning, and it cannot keep others from looking.
func contained[T any](ctx context.Context, c *Console, store string, request func() (T, error)) (T, error) {
	return abandon.Ask(ctx, func() (reply T, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = c.panicked(store, cause)
			}
		}()
		return request()
	})
}

// patient returns a context that ends stopTime after ctx. Until then, what ctx has
// ended may return what it has so far. Then it is given up with errGivenUp.
func patient(ctx context.Context) (late context.Context, cancel context.CancelFunc) {
	late, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(stopTime, func() { end(errGivenUp) })
		context.AfterFunc(late, func() { timer.Stop() })
	})
	return late, func() {
		stop()
		end(nil)
	}
}

var errGivenUp = errors.New("it was given up: it went on for " + legible.Span(stopTime) + " after it was to end")

// hostOf returns the name of a host without its port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// crossOrigin reports whether a browser says that a request was made by a page of
// another origin. A request that says nothing is not from a browser of today, and
// still needs the token of the form.
func crossOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != r.Host || u.Scheme != "https" && u.Scheme != "http"
}

// whoIs returns the person who makes a request, the token of their forms, and
// whether they signed in here. The proxy decides if the request came through it. A
// request that a person has not made is no use of their sign-in.
func (c *Console) whoIs(r *http.Request, uses bool) (who *Person, form string, here bool) {
	if p := c.o.Proxy; p != nil && fromProxy(r.RemoteAddr, p.From) {
		if names := r.Header.Values(p.Header); len(names) == 1 && names[0] != "" { // two: one is not from the proxy
			who := c.named[names[0]]
			if who == nil && p.Role != 0 && len(names[0]) <= longestName && name.Check("Name", names[0]) == nil {
				who = &Person{Name: names[0], Role: p.Role}
			}
			if who != nil {
				return who, c.formToken("proxy", names[0]), false
			}
		}
		return nil, "", false
	}
	for _, cookie := range r.CookiesNamed(c.cookieOf(r)) { // another program of this host may have set one, too
		if who := c.sessions.of(cookie.Value, c.now(), uses); who != nil {
			return who, c.formToken("session", cookie.Value), true
		}
	}
	return nil, "", false
}

// isByItself reports whether a page is loaded again by itself: by its script, or,
// where it is at work, without it.
func isByItself(r *http.Request, path string) bool {
	switch path {
	case "/events":
		return true
	case "/ask", "/job", "/reconcile/result":
		return r.Method == http.MethodGet
	}
	return r.Header.Get(refreshing) != ""
}

// cookieOf returns the name of the cookie with the session. Browsers send the
// cookies of a host to all of its ports, so the port is in the name: two consoles
// would sign people out of each other. The prefixes keep pages that came without
// TLS, and hosts below the same domain, from setting it.
func (c *Console) cookieOf(r *http.Request) string {
	name := cookieName
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != "" && strings.Trim(port, "0123456789") == "" {
		name += "_" + port
	}
	switch {
	case !c.isSecure(r):
		return name
	case c.base == "":
		return "__Host-" + name
	}
	return "__Secure-" + name
}

func (c *Console) isSecure(r *http.Request) bool { return c.o.HTTPS || r.TLS != nil }

func fromProxy(addr string, from []netip.Prefix) bool {
	at, err := netip.ParseAddrPort(addr)
	return err == nil && slices.ContainsFunc(from, func(p netip.Prefix) bool { return p.Contains(at.Addr().Unmap()) })
}

// formToken returns what each form of a sign-in has in it. Another site cannot
// read it.
func (c *Console) formToken(kind, of string) string {
	m := hmac.New(sha256.New, c.secret[:])
	m.Write([]byte(kind + "\x00" + of))
	return hex.EncodeToString(m.Sum(nil))
}

// askWho asks a person to sign in. A link from another site, such as a chat, comes
// without the cookie, because that is SameSite=Strict. The page then opens itself
// again, from here.
func (v *view) askWho() {
	next := v.r.URL.RequestURI()
	if rest, mounted := strings.CutPrefix(next, v.base+"/"); mounted {
		next = "/" + rest
	}
	site, reopened := v.r.Header.Get("Sec-Fetch-Site"), v.r.Method == http.MethodGet
	if (site == "cross-site" || site == "same-site") && reopened && v.o.Proxy == nil {
		v.render(http.StatusUnauthorized, "reopen", page{Title: "One moment", Body: v.inside(next)})
		return
	}
	v.render(http.StatusUnauthorized, "signin", page{Title: "Sign in", Body: signInPage{Next: local(next), Tokens: len(v.people) > 0}})
}

type signInPage struct {
	Next    string
	Tokens  bool // people can sign in here, not only at the proxy
	Refused bool
	Many    bool // wrong tokens came before
}

func (v *view) signIn() {
	next := local(v.r.PostForm.Get("next"))
	digest := sha256.Sum256([]byte(strings.TrimSpace(v.r.PostForm.Get("token")))) // what a digest takes to be found says nothing about a token
	who := v.people[digest]
	if who == nil {
		wait, silent := v.attempts.wrong(v.r.RemoteAddr, v.now())
		if wait > 0 {
			v.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
			v.render(http.StatusTooManyRequests, "signin", page{Title: "Sign in", Body: signInPage{Next: next, Tokens: len(v.people) > 0, Many: true}})
			return
		}
		attrs := []any{"from", v.r.RemoteAddr}
		if silent > 0 {
			attrs = append(attrs, "not_logged", silent)
		}
		v.log.WarnContext(v.r.Context(), "console: a sign-in was refused", attrs...)
		v.render(http.StatusForbidden, "signin", page{Title: "Sign in", Body: signInPage{Next: next, Tokens: len(v.people) > 0, Refused: true}})
		return
	}
	for _, cookie := range v.r.CookiesNamed(v.cookieOf(v.r)) {
		v.sessions.finish(cookie.Value)
	}
	v.setCookie(v.sessions.begin(who, v.now()), 0)
	v.who = who
	v.record(deed{kind: signed, What: "signed in"})
	v.seeOther(v.inside(next))
}

func (v *view) signOut() {
	for _, cookie := range v.r.CookiesNamed(v.cookieOf(v.r)) {
		v.sessions.finish(cookie.Value)
	}
	v.setCookie("", -1)
	v.record(deed{kind: signed, What: "signed out"})
	v.seeOther(v.inside("/"))
}

func (v *view) setCookie(value string, age int) {
	http.SetCookie(v.w, &http.Cookie{Name: v.cookieOf(v.r), Value: value, Path: v.base + "/", MaxAge: age, HttpOnly: true,
		Secure: v.isSecure(v.r), SameSite: http.SameSiteStrictMode})
}

// seeOther sends the browser to a URL of the console.
func (v *view) seeOther(url string) { http.Redirect(v.w, v.r, url, http.StatusSeeOther) }

// inside returns the URL of a path of the console.
func (c *Console) inside(path string) string { return c.base + path }

// local returns a path of the console that a form or a request named, or its
// beginning: never another site, and never the page that signs in.
func local(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(path, "/") ||
		strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") || u.Path == "/sign-in" {
		return "/"
	}
	return path
}
