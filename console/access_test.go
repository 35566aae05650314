package console

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/logtest"
)

// Who may do what, for every path that there is.
func TestRolesAreCheckedOnEveryPath(t *testing.T) {
	for _, write := range []bool{false, true} {
		c := open(t, Options{Write: write})
		tokens := map[Role]string{Look: lookToken, Decide: decideToken, Administer: adminToken}
		for role := Role(0); role <= Administer; role++ {
			b, form := visit(t, c), url.Values{}
			if role > 0 {
				b = as(t, c, tokens[role])
				form.Set(tokenField, b.form("/sign-out").values().Get(tokenField))
			}
			for path, methods := range c.routes {
				if path == "/sign-in" || path == "/sign-out" {
					continue
				}
				for method, to := range methods {
					if method == http.MethodGet {
						b.get(path)
					} else {
						b.post(path, form)
					}
					refused := b.status == http.StatusForbidden || b.status == http.StatusUnauthorized
					if want := role < to.role || to.write && !write; refused != want {
						t.Errorf("%s %s by %v with Write %v: status %d", method, path, role, write, b.status)
					}
				}
			}
		}
	}
}

func TestEveryPostNeedsItsFormToken(t *testing.T) {
	c := open(t, Options{Write: true})
	other := as(t, c, adminToken).form("/sign-out").values().Get(tokenField)
	for path, methods := range c.routes {
		if _, posts := methods[http.MethodPost]; !posts || path == "/sign-in" {
			continue
		}
		for name, token := range map[string]string{"none": "", "wrong": "x", "of another sign-in": other} {
			b := as(t, c, adminToken)
			if b.post(path, url.Values{tokenField: {token}}); b.status != http.StatusForbidden {
				t.Errorf("%s with the token %s: status %d", path, name, b.status)
			}
		}
	}
}

func TestPostsOfOtherOriginsAreRefused(t *testing.T) {
	c := open(t, Options{Write: true})
	for name, headers := range map[string]map[string]string{
		"cross-site":     {"Sec-Fetch-Site": "cross-site"},
		"another port":   {"Sec-Fetch-Site": "same-site"},
		"typed":          {"Sec-Fetch-Site": "none"},
		"another origin": {"Sec-Fetch-Site": "", "Origin": "http://evil.example"},
		"no origin":      {"Sec-Fetch-Site": "", "Origin": "null"},
		"a file":         {"Sec-Fetch-Site": "", "Origin": "file://localhost:9470"},
	} {
		b := as(t, c, adminToken)
		form := b.form("/sign-out").values()
		b.prepare = func(r *http.Request) {
			for name, value := range headers {
				if r.Header.Set(name, value); value == "" {
					r.Header.Del(name)
				}
			}
		}
		if b.post("/sign-out", form); b.status != http.StatusForbidden {
			t.Errorf("%s: status %d", name, b.status)
		}
		if b.post("/sign-in", url.Values{"token": {adminToken}}); b.status != http.StatusForbidden {
			t.Errorf("%s: signing somebody in has the status %d", name, b.status)
		}
		if b.prepare = nil; b.get("/").status != http.StatusOK {
			t.Errorf("%s: the person is signed out", name)
		}
	}
}

func TestOtherHostsAreRefused(t *testing.T) {
	c := open(t, Options{})
	for host, want := range map[string]int{"localhost:9470": 401, "localhost": 401, "LOCALHOST": 401, "127.0.0.1:1": 401, "[::1]:9470": 401,
		"evil.example": 421, "localhost.evil.example:9470": 421, "": 421} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if c.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q: status %d, want %d", host, w.Code, want)
		}
	}
}

func TestMethodsAndTypesAreChecked(t *testing.T) {
	c := open(t, Options{Write: true})
	b := as(t, c, adminToken)
	b.get("/sign-out").is(http.StatusMethodNotAllowed)
	if b.header.Get("Allow") != http.MethodPost {
		t.Errorf("Allow is %q", b.header.Get("Allow"))
	}
	b.do(httptest.NewRequest(http.MethodDelete, "http://localhost:9470/", nil)).is(http.StatusMethodNotAllowed)
	r := httptest.NewRequest(http.MethodPost, "http://localhost:9470/sign-out", strings.NewReader(`{}`))
	r.Header.Set("Content-Type", "text/plain")
	b.do(r).is(http.StatusUnsupportedMediaType)
	b.get("/nothing").is(http.StatusNotFound).shows("There is no such page")
	b.do(httptest.NewRequest(http.MethodHead, "http://localhost:9470/audit", nil)).is(http.StatusOK)
	if b.text != "" {
		t.Errorf("HEAD has the body %q", b.text)
	}
}

// endless is a body that never ends, and counts what is read of it.
type endless struct{ read int }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = "&a=1"[(e.read+i)%4]
	}
	e.read += len(b)
	return len(b), nil
}

// A form is read in memory, where its fields need much more than its bytes. Only
// decisions, which have answers in them, are large, and only of people who may
// decide.
func TestFormsAreReadOnlyAsFarAsNeeded(t *testing.T) {
	c := open(t, Options{Write: true})
	readOnly := open(t, Options{})
	nobody := func(c *Console) *browser { return visit(t, c) }
	by := func(token string) func(*Console) *browser {
		return func(c *Console) *browser { return as(t, c, token) }
	}
	for _, try := range []struct {
		to   *Console
		who  func(*Console) *browser
		path string
		most int
	}{
		{c, nobody, "/sign-in", 32 << 10}, {c, nobody, "/key/settle", 0}, {c, nobody, "/sign-out", 0},
		{c, by(lookToken), "/key/settle", 0}, {c, by(lookToken), "/sign-out", 32 << 10}, {readOnly, by(adminToken), "/key/settle", 0},
		{c, by(decideToken), "/change", 32 << 10}, {c, by(decideToken), "/key/settle", maxForm + 1},
	} {
		b, body := try.who(try.to), new(endless)
		r := httptest.NewRequest(http.MethodPost, "http://localhost:9470"+try.path, body)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if b.do(r); b.status < 400 || body.read > try.most {
			t.Errorf("%s: status %d after %d bytes", try.path, b.status, body.read)
		}
	}
}

func TestASignInEnds(t *testing.T) {
	c := open(t, Options{})
	c.Close() // nothing else reads the clock
	now := time.Unix(1_800_000_000, 0)
	c.now = func() time.Time { return now }
	b := as(t, c, lookToken)
	for range 3 {
		now = now.Add(29 * time.Minute)
		b.get("/").is(http.StatusOK)
	}
	idle := *b
	now = now.Add(31 * time.Minute)
	idle.get("/").is(http.StatusUnauthorized).shows("Sign in")

	b = as(t, c, lookToken)
	for end := now.Add(sessionTime); now.Before(end); now = now.Add(29 * time.Minute) {
		c.whoIs(withCookie(b.cookies[cookieHere]), true)
	}
	now = now.Add(time.Minute)
	b.get("/").is(http.StatusUnauthorized)

	b = as(t, c, lookToken)
	cookie := *b.cookies[cookieHere]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Secure {
		t.Errorf("the cookie is %+v", cookie)
	}
	b.fill("/sign-out").is(http.StatusUnauthorized)
	b.cookies[cookieHere] = &cookie
	b.get("/").is(http.StatusUnauthorized)
}

// The overview and a job are loaded again and again, also if nobody is there.
func TestAPageThatIsLeftOpenKeepsNobodySignedIn(t *testing.T) {
	c := open(t, Options{})
	c.Close()
	now := time.Unix(1_800_000_000, 0)
	c.now = func() time.Time { return now }
	for path, header := range map[string]string{"/": refreshing, "/job?number=1": "Nothing"} {
		b := as(t, c, lookToken)
		b.prepare = func(r *http.Request) { r.Header.Set(header, "1") }
		for range 3 {
			if now = now.Add(9 * time.Minute); b.get(path).status == http.StatusUnauthorized {
				t.Errorf("%s: signed out early", path)
			}
		}
		now = now.Add(4 * time.Minute)
		b.get(path).is(http.StatusUnauthorized)
	}
}

func withCookie(c *http.Cookie) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://localhost:9470/", nil)
	r.AddCookie(c)
	return r
}

// Browsers send the cookies of a host to all of its ports, and let each set them.
func TestPortsOfAHostDoNotSignPeopleOut(t *testing.T) {
	c := open(t, Options{})
	b := as(t, c, lookToken)
	for name := range b.cookies {
		if name != cookieHere {
			t.Errorf("the cookie is %s", name)
		}
	}
	b.prepare = func(r *http.Request) { // with a longer path, and so first
		r.Header.Set("Cookie", cookieHere+"=of-another-program; "+cookieName+"_9471=x; "+r.Header.Get("Cookie"))
	}
	b.get("/audit").is(http.StatusOK)
	b.fill("/sign-out").is(http.StatusUnauthorized)

	for path, want := range map[string]string{"": "__Host-" + cookieName, "/once": "__Secure-" + cookieName} {
		c := open(t, Options{HTTPS: true, Path: path, Hosts: []string{"ops.example"}})
		r := httptest.NewRequest(http.MethodPost, "http://ops.example"+path+"/sign-in", strings.NewReader("token="+lookToken))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		if cookies := w.Result().Cookies(); len(cookies) != 1 || cookies[0].Name != want || !cookies[0].Secure {
			t.Errorf("%q: the cookies are %v", path, cookies)
		}
	}
}

// A stolen token that may only look ends nobody else's sign-in, and pushes nobody's
// deed off the page.
func TestSigningInAgainAndAgainIsBounded(t *testing.T) {
	c := open(t, Options{Write: true})
	ada := as(t, c, adminToken).get("/")
	c.trail.add(deed{By: "ada", What: "released", Reason: "not there"})
	c.trail.add(deed{kind: looked, By: "dee", What: "looked at the answer"})
	for range 1100 {
		r := httptest.NewRequest(http.MethodPost, "http://localhost:9470/sign-in", strings.NewReader("token="+lookToken))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		c.ServeHTTP(httptest.NewRecorder(), r)
	}
	ada.get("/audit").is(http.StatusOK).shows("released", "looked at the answer", "signed in")
	if n := len(c.sessions.all); n != maxSessions+1 {
		t.Errorf("there are %d sessions", n)
	}
	for range 2 * maxTrail {
		c.trail.add(deed{})
	}
	if n := len(c.trail.latest()); n != maxTrail {
		t.Errorf("there are %d deeds", n)
	}
}

func TestTheOldestSignInOfAPersonMakesRoom(t *testing.T) {
	s := sessions{idle: time.Hour}
	now, who, other := time.Unix(1_800_000_000, 0), new(Person), new(Person)
	first, others := s.begin(who, now), s.begin(other, now)
	second := s.begin(who, now)
	for i := range maxSessions - 1 {
		s.begin(who, now.Add(time.Duration(i+1)*time.Millisecond))
	}
	if s.of(first, now, true) != nil && s.of(second, now, true) != nil || s.of(others, now, true) == nil || len(s.all) != maxSessions+1 {
		t.Errorf("there are %d sessions", len(s.all))
	}
	s.begin(who, now.Add(2*time.Hour))
	if len(s.all) != 1 {
		t.Errorf("there are %d sessions, and all others are over", len(s.all))
	}
}

func TestWrongTokensAreRefusedAndLogged(t *testing.T) {
	var log logtest.Log
	c := open(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	b := visit(t, c).get("/audit").is(http.StatusUnauthorized)
	b.fill("/sign-in", "token", "secret-that-is-wrong-0123").is(http.StatusForbidden).shows("This token is not known here")
	if b.cookies[cookieHere] != nil || strings.Contains(log.String(), "secret-that") || !strings.Contains(log.String(), "a sign-in was refused") {
		t.Errorf("logged %s", log.String())
	}
	b.fill("/sign-in", "token", lookToken).is(http.StatusOK).shows("Audit")
	if b.at != "/audit" {
		t.Errorf("signing in leads to %s", b.at)
	}
}

func TestSigningInLeadsNowhereElse(t *testing.T) {
	c := open(t, Options{Path: "/once"})
	for next, want := range map[string]string{"/audit?a=b": "/once/audit?a=b", "//evil.example/": "/once/", "///evil.example": "/once/", "https://evil.example": "/once/",
		`/\evil.example`: "/once/", "audit": "/once/", "": "/once/", "/sign-in": "/once/", "/%0d%0ax": "/once/%0d%0ax"} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/once/sign-in", strings.NewReader(url.Values{"token": {lookToken}, "next": {next}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		if c.ServeHTTP(w, r); w.Header().Get("Location") != want {
			t.Errorf("%q leads to %q, want %q", next, w.Header().Get("Location"), want)
		}
	}
}

// The cookie does not come with a link in a chat, so the page opens itself again.
func TestALinkFromAnotherSiteOpens(t *testing.T) {
	c := open(t, Options{})
	b := visit(t, c)
	b.prepare = func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }
	b.get("/audit").is(http.StatusUnauthorized)
	if metas := b.page.all("meta"); len(metas) == 0 || !strings.Contains(b.text, `http-equiv="refresh" content="0"`) {
		t.Errorf("no refresh:\n%s", b.text)
	}
}

func TestTheProxyIsBelievedAtItsAddress(t *testing.T) {
	c := open(t, Options{Proxy: &Proxy{Header: "X-User", From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Role: Look},
		People: []Person{{Name: "ada", Role: Administer}}})
	for _, try := range []struct {
		from   string
		names  []string
		status int
		shows  string
	}{
		{"10.1.2.3:99", []string{"ada"}, 200, "ada administer"},
		{"10.1.2.3:99", []string{"eve"}, 200, "eve look"},
		{"[::ffff:10.1.2.3]:99", []string{"ada"}, 200, "ada administer"},
		{"10.1.2.3:99", nil, 401, "Only the proxy"},
		{"10.1.2.3:99", []string{""}, 401, "Only the proxy"},
		{"10.1.2.3:99", []string{"ada", "eve"}, 401, "Only the proxy"},
		{"10.1.2.3:99", []string{"eve\xff"}, 401, "Only the proxy"},
		{"192.168.1.1:99", []string{"ada"}, 401, "Only the proxy"},
		{"nonsense", []string{"ada"}, 401, "Only the proxy"},
	} {
		b := visit(t, c)
		b.prepare = func(r *http.Request) {
			r.RemoteAddr = try.from
			r.Header["X-User"] = try.names
		}
		b.get("/").is(try.status).shows(try.shows)
	}
}

func TestLinksKeepThePath(t *testing.T) {
	c := open(t, Options{Path: "/admin/once/"})
	for name, h := range map[string]http.Handler{"whole": c, "stripped": http.StripPrefix("/admin/once", c)} {
		b := visit(t, h)
		b.get("/admin/once/").fill("/admin/once/sign-in", "token", lookToken).is(http.StatusOK).follow("Audit").is(http.StatusOK)
		if b.at != "/admin/once/audit" && name == "whole" {
			t.Errorf("%s: at %s", name, b.at)
		}
		b.page.walk(func(e *element) {
			for _, of := range []string{"href", "src", "action"} {
				if to := e.attr[of]; to != "" && to[0] != '#' && !strings.HasPrefix(to, "/admin/once/") {
					t.Errorf("%s: <%s> leads to %s", name, e.name, to)
				}
			}
		})
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	good := open(t, Options{}).o
	network := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for want, change := range map[string]func(*Options){
		"there is no store":     func(o *Options) { o.Stores = nil },
		"is nil":                func(o *Options) { o.Stores = []Store{{Name: "a"}} },
		"name of a store":       func(o *Options) { o.Stores = []Store{{Name: "a b", Store: o.Stores[0].Store}} },
		"two stores":            func(o *Options) { o.Stores = append(o.Stores[:1:1], o.Stores[0]) },
		"the Path":              func(o *Options) { o.Path = "admin" },
		"nobody could use it":   func(o *Options) { o.People = nil },
		"shorter than":          func(o *Options) { o.People = []Person{{"a", Look, "short"}} },
		"same token":            func(o *Options) { o.People = []Person{{"a", Look, lookToken}, {"b", Look, lookToken}} },
		"two people":            func(o *Options) { o.People = []Person{{"a", Look, lookToken}, {"a", Look, adminToken}} },
		"the role of":           func(o *Options) { o.People = []Person{{"a", 0, lookToken}} },
		"nothing lets them in":  func(o *Options) { o.People = []Person{{"a", Look, ""}} },
		"the name of a person":  func(o *Options) { o.People = []Person{{"a\n", Look, lookToken}} },
		"Proxy.Header is empty": func(o *Options) { o.Proxy = &Proxy{} },
		"Proxy.From is empty":   func(o *Options) { o.Proxy = &Proxy{Header: "X-User"} },
		"the name of a header":  func(o *Options) { o.Proxy = &Proxy{Header: "X-User:", From: network} },
		"no request would match": func(o *Options) {
			o.Proxy = &Proxy{Header: "X-User", From: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}}
		},
		"without a port": func(o *Options) { o.Hosts = []string{"ops.example:8443"} },
		"a host is":      func(o *Options) { o.Hosts = []string{"*"} },
		"the link":       func(o *Options) { o.Links = []Link{{"Trace", "javascript:alert(1)"}} },
	} {
		o := good
		change(&o)
		if c, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			if c != nil {
				c.Close()
			}
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestTheFirstViewIsSmall(t *testing.T) {
	c := open(t, Options{})
	b := as(t, c, lookToken)
	b.get("/")
	size := len(b.text)
	b.page.walk(func(e *element) {
		for _, of := range []string{e.attr["src"], e.attr["href"]} {
			if e.name != "a" && strings.Contains(of, "/assets/") {
				w := httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodGet, "http://localhost"+of, nil)
				c.ServeHTTP(w, r)
				if w.Code != 200 || w.Header().Get("Content-Security-Policy") != policy {
					t.Errorf("%s: status %d", of, w.Code)
				}
				size += w.Body.Len()
			}
		}
	})
	if size > 60_000 {
		t.Errorf("the first view has %d bytes", size)
	}
	t.Logf("the first view has %d bytes", size)
}
