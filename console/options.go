package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store"
)

// Options configures a [Console]. Stores is required, and People or Proxy.
type Options struct {
	// Stores are what is shown. Work of one store that another one consumes is
	// followed through all of them.
	Stores []Store

	// Path is where the console is mounted, as browsers see it, such as
	// /admin/once. The handler works with and without http.StripPrefix. Default: /.
	Path string

	// People may use the console. Those without a Token get in through the Proxy
	// only.
	People []Person

	// Proxy names a proxy that authenticates people. Default: none.
	Proxy *Proxy

	// Write allows changes. Without it, roles above Look can only see more.
	Write bool

	// Hosts are the host names, without a port, by which browsers reach the console.
	// A page of another site cannot make its own name point here. Default:
	// localhost, 127.0.0.1 and ::1.
	Hosts []string

	// HTTPS says that browsers reach the console by HTTPS only, for example through a
	// proxy that ends TLS. Cookies are then never sent without it. It is implied if
	// the request itself came by TLS.
	HTTPS bool

	// IdleTime ends a sign-in that was not used for this long. Default: 30 minutes.
	// After 12 hours it ends in any case.
	IdleTime time.Duration

	// Links are shown on the page of a key: to its trace, its log or its order. In a
	// URL, {key} is replaced by the key as it travels, which is what spans have as
	// once.key, and {scope}, {operation} and {id} by its parts.
	Links []Link

	// Operations are names of operations that a search for an id tries first, besides
	// those that the console has seen.
	Operations []string

	// Reports are files that people may compare with the keys of a store, besides
	// those that they upload. Nobody can name another file.
	Reports []Report

	// Lag returns how much a source still has for a consumer. [LagOf] makes one of
	// sources. [ErrLagUnknown] says that nobody can be asked about it. No page calls it:
	// each source is asked at most every 15 seconds while somebody looks at the overview,
	// and else once a minute, eight at a time, for at most five seconds each. A source
	// that needs positions is asked for each of its consumers. Default: the lag is not
	// known.
	Lag func(context.Context, LagQuestion) (broker.Lag, error)

	// Log gets changes with their person, and trouble. Default: slog.Default().
	Log *slog.Logger
}

// Store is a store and the name that people know it by.
type Store struct {
	Name  string // letters, digits, dots, - and _
	Store once.Store

	// Leases returns who publishes the messages of the outbox, without a change.
	// Default: the method OutboxLeases of the Store, if it has one.
	Leases func(context.Context) (store.Leases, error)

	// Doctor examines the store, without a change, and returns what is unsafe about it
	// or needs attention. It is called at most every five minutes, while somebody
	// looks at the overview, and never by a page. Default: nothing is examined.
	Doctor func(context.Context) ([]Finding, error)

	// Duplicates returns how many duplicates the program has prevented since it
	// started: for its consumers, the sum of Duplicates and Prevented of their
	// inbox.Stats. For its calls, count the results of an Observer that are Replayed.
	// It must not block. Default: the overview says that it is not known, because no
	// store counts them.
	Duplicates func() int64

	// Published returns how many messages of the outbox the program has published
	// since it started: Published of the outbox.Stats of its relays. It must not
	// block. Default: the overview shows no rate, because no store counts them.
	Published func() int64

	// Ask are operations whose unknown keys people may ask about: their Lookup, or
	// what package cmd/once asks a URL with. Make them with [reconcile.Of]; AtOnce and
	// PerSecond bound all questions of the console. Resume is not called. Where the
	// question goes is settled here, and never by a page. Default: none.
	Ask []reconcile.Operation
}

// Person is somebody who uses the console.
type Person struct {
	Name  string // 1 to 80 bytes: who it was, in the audit and in reasons
	Role  Role
	Token string // at least 20 characters, random; empty: none
}

// Role is what a person may do. Each role includes those before it.
type Role int

const (
	Look       Role = iota + 1 // see keys and messages, without stored answers
	Decide                     // see answers and payloads, settle unknown and parked keys, and change messages
	Administer                 // have work that is done run again, rename and retire consumers
)

func (r Role) String() string {
	names := [...]string{"nobody", "look", "decide", "administer"}
	if r < 0 || int(r) >= len(names) {
		return fmt.Sprintf("role(%d)", int(r))
	}
	return names[r]
}

// Proxy is a proxy that authenticates people and says who they are in a header. It
// must remove that header from what it receives.
type Proxy struct {
	Header string         // such as X-Forwarded-User
	From   []netip.Prefix // its addresses: the header of anybody else is ignored
	Role   Role           // of names that are not in People; default: they are refused
}

// Link is a link to another system.
type Link struct {
	Text string // such as Trace
	URL  string // https or http
}

// Report is a file on the machine of the console: the report of another system, such
// as the charges that a payment provider exports.
type Report struct {
	Name string // letters, digits, dots, - and _
	File string // its path. It is opened anew for each comparison
}

// shortestToken keeps tokens from being guessed.
const shortestToken = 20

// longestName and longestReason keep a decision within the 500 bytes that a store
// keeps of a reason. They are those of the command.
const longestReason, longestName = 400, 80

// Console is an [http.Handler]. It is safe for concurrent use.
type Console struct {
	o      Options
	base   string // of all links: the Path without a slash at its end
	log    *slog.Logger
	secret [32]byte // of the form tokens
	people map[[32]byte]*Person
	named  map[string]*Person
	hosts  map[string]bool
	routes map[string]map[string]route // by path and method
	pages  map[string]*template.Template
	files  map[string]file

	sessions sessions
	attempts attempts
	trail    trail
	names    names
	sweeps   chan struct{}            // a place for each store that is finding ids
	calls    map[string]chan struct{} // by the name of the store: a place for each request
	editing  sync.Mutex               // of consumers
	sampler  sampler
	checkups checkups
	lags     lags
	jobs     jobs

	comparisons comparisons
	askers      map[string][]*asker // by the name of the store
	inquiries   inquiries
	streams     streams
	closing     <-chan struct{} // closed by Close
	now         func() time.Time

	end     context.CancelFunc
	running sync.WaitGroup
}

var _ http.Handler = (*Console)(nil)

// New returns a console. Close it when it is no longer used.
func New(o Options) (*Console, error) { return newBy(time.Now, o) }

func newBy(clock func() time.Time, o Options) (*Console, error) {
	c := &Console{o: o, log: logs.Of(o.Log), now: clock, sweeps: make(chan struct{}, sweepAtOnce), calls: make(map[string]chan struct{})}
	for _, s := range o.Stores {
		c.calls[s.Name] = make(chan struct{}, callsAtOnce)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%w: console: %w", once.ErrInvalid, err)
	}
	rand.Read(c.secret[:]) // never fails: it ends the program instead
	c.o.IdleTime = cmp.Or(o.IdleTime, 30*time.Minute)
	c.sessions.idle = c.o.IdleTime
	if err := c.load(); err != nil {
		return nil, err
	}
	c.routes = c.allRoutes()
	for _, op := range o.Operations {
		c.names.see(once.Key{Operation: op})
	}
	ctx, end := context.WithCancel(context.Background())
	c.end, c.closing = end, ctx.Done()
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		c.watch(ctx)
	}()
	return c, nil
}

// Close ends what runs for the console: jobs after the message or key that they are at,
// and comparisons, questions and live updates at once. What has not ended after 15
// seconds, because a store, a Lookup or a Doctor ignores its context, is given up.
// Later requests are served all the same.
func (c *Console) Close() {
	c.comparisons.close()
	c.end()
	c.jobs.close()
	c.inquiries.close()
	c.comparisons.running.Wait()
	c.jobs.running.Wait()
	c.inquiries.running.Wait()
	c.running.Wait()
}

func (c *Console) check() error {
	o := &c.o
	if len(o.Stores) == 0 {
		return errors.New("there is no store: name at least one in Stores")
	}
	seen := make(map[string]bool)
	for _, s := range o.Stores {
		switch {
		case s.Store == nil:
			return fmt.Errorf("the store %q is nil", s.Name)
		case !isPlain(s.Name):
			return fmt.Errorf("the name of a store is %q: use letters, digits, dots, - and _", s.Name)
		case seen[s.Name]:
			return fmt.Errorf("two stores have the name %q", s.Name)
		}
		seen[s.Name] = true
	}
	c.askers = make(map[string][]*asker)
	for _, s := range o.Stores {
		var err error
		if c.askers[s.Name], err = newAskers(s); err != nil {
			return err
		}
	}
	c.base = strings.TrimRight(o.Path, "/")
	if c.base != "" && (c.base[0] != '/' || strings.Contains(c.base, "//") || strings.ContainsAny(c.base, "?#%\\ \"'<>")) {
		return fmt.Errorf("the Path is %q: use the path of a URL, such as /admin/once", o.Path)
	}
	c.people, c.named = make(map[[32]byte]*Person), make(map[string]*Person)
	for i := range o.People {
		p := &o.People[i]
		switch {
		case strings.TrimSpace(p.Name) == "" || len(p.Name) > longestName || name.Check("Name", p.Name) != nil:
			return fmt.Errorf("the name of a person is %q: use 1 to %d printable bytes", p.Name, longestName)
		case p.Role < Look || p.Role > Administer:
			return fmt.Errorf("the role of %q is %v: use Look, Decide or Administer", p.Name, p.Role)
		case c.named[p.Name] != nil:
			return fmt.Errorf("two people have the name %q", p.Name)
		case p.Token == "" && o.Proxy == nil:
			return fmt.Errorf("%q has no Token, and there is no Proxy: nothing lets them in", p.Name)
		case p.Token != "" && len(p.Token) < shortestToken:
			return fmt.Errorf("the token of %q is shorter than %d characters: make a random one", p.Name, shortestToken)
		}
		c.named[p.Name] = p
		if p.Token == "" {
			continue
		}
		digest := sha256.Sum256([]byte(p.Token))
		if c.people[digest] != nil {
			return fmt.Errorf("%q and %q have the same token", p.Name, c.people[digest].Name)
		}
		c.people[digest] = p
	}
	switch p := o.Proxy; {
	case p == nil && len(o.People) == 0:
		return errors.New("nobody could use it: name People, or a Proxy")
	case p != nil && p.Header == "":
		return errors.New("Proxy.Header is empty: name the header in which the proxy says who it is")
	case p != nil && len(p.From) == 0:
		return errors.New("Proxy.From is empty: anybody could send the header. Name the addresses of the proxy")
	case p != nil && strings.Trim(p.Header, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "":
		return fmt.Errorf("Proxy.Header is %q: use the name of a header, such as X-Forwarded-User", p.Header)
	case p != nil && slices.ContainsFunc(p.From, func(f netip.Prefix) bool { return !f.IsValid() || f.Addr().Is4In6() }):
		return fmt.Errorf("Proxy.From is %v: write networks like 10.0.0.0/8, and IPv4 addresses not as IPv6: no request would match", p.From)
	case p != nil && (p.Role < 0 || p.Role > Administer):
		return fmt.Errorf("Proxy.Role is %v", p.Role)
	}
	c.hosts = make(map[string]bool)
	hosts := o.Hosts
	if len(hosts) == 0 {
		hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	for _, h := range hosts {
		if _, _, err := net.SplitHostPort(h); h == "" || strings.ContainsAny(h, "/*@ ") || err == nil {
			return fmt.Errorf("a host is %q: use a name or an address, without a port", h)
		}
		c.hosts[strings.ToLower(strings.Trim(h, "[]"))] = true
	}
	for _, l := range o.Links {
		if l.Text == "" || !strings.HasPrefix(l.URL, "https://") && !strings.HasPrefix(l.URL, "http://") {
			return fmt.Errorf("the link %q has the URL %q: give a text, and a URL with https", l.Text, l.URL)
		}
	}
	reports := make(map[string]bool)
	for _, r := range o.Reports {
		switch {
		case !isPlain(r.Name):
			return fmt.Errorf("the name of a report is %q: use letters, digits, dots, - and _", r.Name)
		case reports[r.Name]:
			return fmt.Errorf("two reports have the name %q", r.Name)
		case r.File == "":
			return fmt.Errorf("the report %q has no File", r.Name)
		}
		reports[r.Name] = true
	}
	if o.IdleTime < 0 {
		return fmt.Errorf("IdleTime is %v", o.IdleTime)
	}
	return nil
}

// isPlain reports whether a name has letters, digits, dots, - and _ only.
func isPlain(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == ""
}
