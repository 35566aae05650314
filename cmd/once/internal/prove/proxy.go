package prove

import (
	"bytes"
	"net"
	"slices"
	"sync"
)

// proxy passes the bytes between a program and one of its servers, and breaks their
// connections. It does not read the protocol, so it works with every server, and
// below TLS.
type proxy struct {
	name, server string
	listener     net.Listener
	running      sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]bool
	armed  []waitingReply
	closed bool
	done   proxied
}

// proxied is what a proxy has done.
type proxied struct {
	accepted  int // connections
	cuts      int
	broken    int // connections, by cuts
	swallowed int // replies
}

// waitingReply is a reply that is to be swallowed.
type waitingReply struct {
	commit bool // only the reply to a commit, or to what stands for one
	passed int  // other replies that have arrived meanwhile
}

// patientFor is how many replies pass before any is swallowed instead of that to a
// commit, which a proxy does not recognise in every protocol.
const patientFor = 100

// link is a connection of the program, and one to the server.
type link struct {
	client, server net.Conn
	committing     bool // guarded by proxy.mu
}

// newProxy starts a proxy on a free port of this machine.
func newProxy(name, server string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{name: name, server: server, listener: listener, links: map[*link]bool{}}
	p.running.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	if p.enter(l) {
		var both sync.WaitGroup
		both.Go(func() { p.carry(l, client, server, p.sent) })
		both.Go(func() { p.carry(l, server, client, p.arrives) })
		both.Wait()
	}
	l.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

func (p *proxy) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.done.accepted++
	p.links[l] = true
	return true
}

// carry passes bytes while pass says so. When a direction ends, both do.
func (p *proxy) carry(l *link, from, to net.Conn, pass func(*link, []byte) bool) {
	defer l.close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !pass(l, buffer[:n]) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// commits are what programs send when their work is to last: to SQL databases, to
// Redis (a script, or the end of a transaction), and to a bucket of NATS.
var commits = [][]byte{[]byte("commit"), []byte("evalsha"), []byte("exec\r\n"), []byte("pub $kv.")}

// sent notes what the program sends.
func (p *proxy) sent(l *link, data []byte) bool {
	lower := bytes.ToLower(data)
	commit := slices.ContainsFunc(commits, func(text []byte) bool { return bytes.Contains(lower, text) })
	p.mu.Lock()
	defer p.mu.Unlock()
	l.committing = commit
	return true
}

// arrives reports whether the program gets a reply.
func (p *proxy) arrives(l *link, _ []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	commit := l.committing
	l.committing = false
	for i := range p.armed {
		a := &p.armed[i]
		if a.commit && !commit && a.passed < patientFor {
			a.passed++
			continue
		}
		p.armed = append(p.armed[:i], p.armed[i+1:]...)
		p.done.swallowed++
		return false
	}
	return true
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done.cuts++
	for l := range p.links {
		p.done.broken++
		l.close()
	}
}

// swallow keeps the next reply of the server from the program, and breaks its
// connection: the server has done what it was told, and the program does not know.
func (p *proxy) swallow(commit bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, waitingReply{commit: commit})
}

// did returns what the proxy has done until now.
func (p *proxy) did() proxied {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// calm forgets the replies that were still to be swallowed, and returns their
// number.
func (p *proxy) calm() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.armed)
	p.armed = nil
	return n
}

// close ends all connections and frees the port.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.running.Wait()
}
