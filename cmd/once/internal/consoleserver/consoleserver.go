// Package consoleserver serves package console over HTTP, for once console and
// once serve.
package consoleserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/console"
)

// DefaultListen is where the console listens: only programs of this machine reach
// it.
const DefaultListen = "127.0.0.1:9470"

// stopTime limits how long requests may take after the end was asked for.
const stopTime = 3 * time.Second

// Config configures a console, as [console] of the configuration of once serve and
// the flags of once console do.
type Config struct {
	Listen string // default: DefaultListen
	Write  bool
	HTTPS  bool     `toml:"https"` // browsers reach it through a proxy that ends TLS
	Hosts  []string // besides this machine's own, and the one of Listen
	Trace  string   // the URL of a trace, with {key}, or empty
	People []Person
	Proxy  *Proxy

	// Reports are files of other systems that people may compare with the keys, by
	// the names that they see.
	Reports map[string]string
}

// Person is somebody who may use the console.
type Person struct {
	Name  string
	Role  string // look, decide or administer
	Token string // ${NAME} is replaced by that environment variable
}

// Proxy is a proxy that authenticates people.
type Proxy struct {
	Header string
	From   []Address
	Role   string // of people who are not named; empty: they are refused
}

// Address is an IP address, or a network in CIDR notation.
type Address struct{ netip.Prefix }

// UnmarshalText parses 10.0.0.7 or 10.0.0.0/8.
func (a *Address) UnmarshalText(text []byte) (err error) {
	if at, wrong := netip.ParseAddr(string(text)); wrong == nil {
		a.Prefix, err = at.Unmap().Prefix(at.Unmap().BitLen())
		return err
	}
	if a.Prefix, err = netip.ParsePrefix(string(text)); err != nil {
		return fmt.Errorf("%q is not an IP address or a network: write 10.0.0.7 or 10.0.0.0/8", text)
	}
	return nil
}

// Words are the names of settings in errors: those of flags or of a file.
type Words struct{ Listen, Hosts, People, Proxy, Trace string }

// ErrConfig is wrapped by errors about the configuration.
var ErrConfig = errors.New("the console cannot be served like this")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

var roles = map[string]console.Role{"look": console.Look, "decide": console.Decide, "administer": console.Administer}

func role(of, name string) (console.Role, error) {
	if r, ok := roles[name]; ok {
		return r, nil
	}
	return 0, refuse("the role of %s is %q: use look, decide or administer", of, name)
}

// Server is a console that listens.
type Server struct {
	console *console.Console
	l       net.Listener
	log     *slog.Logger
}

// New checks the configuration and listens. The tokens are added to the
// [secret.Set] of the context. Without lag, that of consumers is not known.
func New(ctx context.Context, c Config, stores []console.Store, lag Lag, log *slog.Logger, w Words) (*Server, error) {
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	o, err := c.options(secret.From(ctx), w)
	if err != nil {
		return nil, err
	}
	o.Stores, o.Lag, o.Log = stores, lag, log
	s := &Server{log: log}
	if s.console, err = console.New(o); err != nil {
		if errors.Is(err, once.ErrInvalid) {
			return nil, refuse("%s", strings.TrimPrefix(err.Error(), once.ErrInvalid.Error()+": console: "))
		}
		return nil, err
	}
	if s.l, err = net.Listen("tcp", c.Listen); err != nil {
		s.console.Close()
		return nil, fmt.Errorf("the console cannot be served at %s: %w", c.Listen, err)
	}
	return s, nil
}

// options returns those of the console, without stores.
func (c *Config) options(secrets *secret.Set, w Words) (o console.Options, err error) {
	o = console.Options{Write: c.Write, HTTPS: c.HTTPS}
	for _, name := range slices.Sorted(maps.Keys(c.Reports)) {
		o.Reports = append(o.Reports, console.Report{Name: name, File: c.Reports[name]})
	}
	for i, p := range c.People {
		of := fmt.Sprintf("person %d of %s", i+1, w.People)
		r, err := role(of, p.Role)
		if err != nil {
			return o, err
		}
		token, err := target.Expand(p.Token)
		if err != nil {
			return o, refuse("the token of %s: %s", of, strings.TrimPrefix(err.Error(), target.ErrURL.Error()+": "))
		}
		secrets.Add(token)
		o.People = append(o.People, console.Person{Name: p.Name, Role: r, Token: token})
	}
	if c.Proxy != nil {
		o.Proxy = &console.Proxy{Header: c.Proxy.Header}
		if c.Proxy.Role != "" {
			if o.Proxy.Role, err = role(w.Proxy, c.Proxy.Role); err != nil {
				return o, err
			}
		}
		for _, from := range c.Proxy.From {
			o.Proxy.From = append(o.Proxy.From, from.Prefix)
		}
		if o.Proxy.Header == "" || len(o.Proxy.From) == 0 {
			return o, refuse("%s needs the name of the header, and the addresses of the proxy: anybody else could send that header", w.Proxy)
		}
	}
	if c.Trace != "" {
		o.Links = []console.Link{{Text: "Trace", URL: c.Trace}}
		if !strings.HasPrefix(c.Trace, "https://") && !strings.HasPrefix(c.Trace, "http://") || !strings.Contains(c.Trace, "{") {
			return o, refuse("%s is %q: give the URL of a trace with {key} in it, such as https://traces.example/search?once.key={key}", w.Trace, c.Trace)
		}
	}
	o.Hosts, err = c.hosts(w)
	return o, err
}

// hosts returns the host names that the console answers to.
func (c *Config) hosts(w Words) ([]string, error) {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, refuse("%s is %q: give a host and a port, such as %s", w.Listen, c.Listen, DefaultListen)
	}
	all := append([]string{"localhost", "127.0.0.1", "::1"}, c.Hosts...)
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "" || err == nil && ip.IsUnspecified():
		if len(c.Hosts) == 0 {
			return nil, refuse("%s is %s, all addresses of this machine: add %s, the name by which browsers reach it", w.Listen, c.Listen, w.Hosts)
		}
	case !slices.Contains(all, host):
		all = append(all, host)
	}
	return all, nil
}

// Loopback reports whether only programs of this machine reach an address.
func Loopback(listen string) bool {
	host, _, err := net.SplitHostPort(cmp.Or(listen, DefaultListen))
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Address returns the address at which it listens, or "" for nil.
func (s *Server) Address() string {
	if s == nil {
		return ""
	}
	return s.l.Addr().String()
}

// URL returns where the console is. A browser of this machine can open it.
func (s *Server) URL() string {
	at := s.l.Addr().(*net.TCPAddr)
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, fmt.Sprint(at.Port)) + "/"
}

// Run serves until ctx ends, and then lets requests finish for a few seconds. It
// returns nil then.
func (s *Server) Run(ctx context.Context) error {
	defer s.console.Close()
	working, cancel := context.WithCancel(context.Background())
	defer cancel()
	web := &http.Server{Handler: s.console, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		WriteTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, BaseContext: func(net.Listener) context.Context { return working },
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)}
	web.RegisterOnShutdown(s.console.Close) // live updates would be waited for
	served := make(chan error, 1)
	go func() { served <- web.Serve(s.l) }()
	select {
	case err := <-served:
		return fmt.Errorf("the console is no longer served: %w", err)
	case <-ctx.Done():
	}
	grace, stop := context.WithTimeout(context.Background(), stopTime)
	defer stop()
	_ = web.Shutdown(grace) // Close ends what is left
	cancel()
	_ = web.Close()
	<-served
	return nil
}

// Close ends a Server. After Run, it does nothing.
func (s *Server) Close() {
	s.console.Close()
	_ = s.l.Close()
}

// Store returns a store under the name that people know it by.
func Store(t *target.Target, name string) console.Store {
	return console.Store{Name: cmp.Or(name, string(t.Engine)), Store: t.Store, Leases: t.Leases}
}
