// Package wire is a TCP proxy for tests that knows the protocol it carries: PostgreSQL's, MySQL's, or none.
//
// It stands between a client library and its server, and does to one request what a network can do to it: the request
// never arrives, or the server has answered it and the answer never arrives, or half of it does, or nothing is ever
// heard again. Which request, a [Match] says; what happens to it, an [Action]; that it happened, [Rule.Hits].
//
//	p, dsn := wire.Between(t, testenv.Postgres(t), wire.Postgres)
//	lost := p.On(wire.Runs("commit"), wire.SwallowReply)
//	... use the server at dsn ...
//	if lost.Hits() != 1 {
//		t.Error("no commit was lost, so nothing was tested")
//	}
//
// A request is what the server answers as a whole: in PostgreSQL one Query, or everything up to a Sync, so a pipelined
// batch is one request; in MySQL one command. A request is held back until it is complete, so one that is dropped
// reaches the server in no part.
//
// # Limits
//
// No TLS and no compression: private test servers have none, and a client that may do without is told that there is
// none. Of PostgreSQL, a COPY through the extended protocol is not understood, nor is LOAD DATA LOCAL of MySQL. A proxy
// lives in one process, but clients may be in others. The API follows the needs of this repository's tests and is not
// released.
package wire

import (
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// Proxy is one proxy in front of one server. Its methods may be called from several goroutines.
type Proxy struct {
	server   string
	protocol Protocol
	listener net.Listener
	running  sync.WaitGroup

	mu          sync.Mutex
	rules       []*Rule
	connections map[*connection]bool
	down        bool
}

// Start starts a proxy in front of the server at the address, and stops it with the test.
func Start(t testing.TB, server string, protocol Protocol) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{server: server, protocol: protocol, listener: listener, connections: map[*connection]bool{}}
	p.running.Go(p.accept)
	t.Cleanup(p.stop)
	return p
}

// address finds host and port in a URL, and in a DSN of go-sql-driver/mysql.
var address = regexp.MustCompile(`[@(]([\w.-]+:\d+)\b`)

// Between starts a proxy in front of the server that dsn names, and returns dsn with the address of the proxy instead.
func Between(t testing.TB, dsn string, protocol Protocol) (*Proxy, string) {
	t.Helper()
	found := address.FindStringSubmatch(dsn)
	if found == nil {
		t.Fatal("there is no host:port in the DSN")
	}
	p := Start(t, found[1], protocol)
	return p, strings.Replace(dsn, found[1], p.Addr(), 1)
}

// Addr is the address to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut closes all connections, on both sides.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.connections {
		c.close()
	}
}

// Down cuts all connections, and every new one at once, until Up.
func (p *Proxy) Down() {
	p.setDown(true)
	p.Cut()
}

// Up ends Down.
func (p *Proxy) Up() { p.setDown(false) }

func (p *Proxy) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *Proxy) stop() {
	p.Down()
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	c := newConnection(p, client, server)
	if p.enter(c) {
		c.run()
	}
	c.close()
	p.leave(c)
}

func (p *Proxy) enter(c *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.down {
		p.connections[c] = true
	}
	return !p.down
}

func (p *Proxy) leave(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, c)
}
