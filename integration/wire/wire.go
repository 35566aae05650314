// Package wire is a TCP proxy for tests that understands the protocol of
// PostgreSQL or MySQL, or passes raw bytes.
//
// It runs between a client library and its server, and injects the faults of a
// network into single requests: the request is lost, the reply is lost, half of
// the reply is lost, or the connection stays open and silent. A [Match] selects
// the request, an [Action] says what happens to it, and [Rule.Hits] whether it
// happened.
//
//	p, dsn := wire.Between(t, testenv.Postgres(t), wire.Postgres)
//	lost := p.On(wire.Runs("commit"), wire.SwallowReply)
//	... use the server at dsn ...
//	if lost.Hits() != 1 {
//		t.Error("no commit was lost, so nothing was tested")
//	}
//
// A request is what the server answers as a whole. In PostgreSQL that is one
// Query, or everything up to a Sync, so a pipelined batch is one request. In
// MySQL it is one command. The proxy sends a request only when it is complete,
// so the server gets nothing of a dropped request.
//
// # Limits
//
// There is no TLS and no compression. The proxy tells clients that the server
// has none. It does not understand COPY through the extended protocol of
// PostgreSQL, nor LOAD DATA LOCAL of MySQL. Clients may be in other processes.
// The API follows the needs of the tests in this repository and is not
// released.
package wire

import (
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// Proxy is a proxy for one server. Its methods may be called concurrently.
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

// Start starts a proxy for the server at an address. It stops when the test
// ends.
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

// address matches the host and port in a URL or in a DSN of
// go-sql-driver/mysql.
var address = regexp.MustCompile(`[@(]([\w.-]+:\d+)\b`)

// Between starts a proxy for the server in dsn, and returns dsn with the
// address of the proxy.
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

// Cut closes all connections on both sides.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.connections {
		c.close()
	}
}

// Down cuts all connections, and closes new ones at once until Up.
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
