//go:build linux

package console

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
)

// door is an address through which a server is reached while it is open.
type door struct {
	to string
	l  net.Listener

	mu     sync.Mutex
	closed bool
	all    map[net.Conn]bool
}

func newDoor(t *testing.T, to string) *door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	proof.Must(t, err)
	d := &door{to: to, l: l, all: make(map[net.Conn]bool)}
	t.Cleanup(func() {
		l.Close()
		d.set(true)
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go d.pass(conn)
		}
	}()
	return d
}

func (d *door) pass(conn net.Conn) {
	defer conn.Close()
	server, err := net.Dial("tcp", d.to)
	if err != nil {
		return
	}
	defer server.Close()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	d.all[conn] = true
	d.mu.Unlock()
	go func() {
		_, _ = io.Copy(server, conn)
		server.Close()
	}()
	_, _ = io.Copy(conn, server)
	d.mu.Lock()
	delete(d.all, conn)
	d.mu.Unlock()
}

// set closes the door, and cuts all connections, or opens it.
func (d *door) set(closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = closed
	if closed {
		for conn := range d.all {
			conn.Close()
		}
	}
}

// The store goes away while somebody decides. They learn that nothing was changed, and
// decide when it is back.
func TestTheStoreGoesAwayAndComesBack(t *testing.T) {
	var d *door
	s := newShop(t, engines.PGStore, func(p engines.Place) engines.Place {
		u, err := url.Parse(p.DSN)
		proof.Must(t, err)
		d = newDoor(t, u.Host)
		u.Host = d.l.Addr().String()
		p.DSN = u.String()
		return p
	})
	k := s.charge(once.Key{Operation: "pay/charge", ID: "order-4711"})
	b := s.open(ann)
	decide(b, k, "happened", "the provider has it")
	d.set(true)
	if status := b.follow("main form button.main, main form button.danger"); status != http.StatusServiceUnavailable {
		t.Errorf("the decision has the status %d", status)
	}
	b.sees("does not answer", "Nothing was changed")
	b.picture("away")
	for _, path := range []string{"/", "/find?q=order-4711", "/audit", link(k)} {
		if status := b.visit(path); path == "/audit" && status != http.StatusOK {
			t.Errorf("%s has the status %d", path, status)
		}
		b.fits()
	}
	d.set(false)
	decide(b, k, "happened", "the provider has it")
	if status := b.follow("main form button.main, main form button.danger"); status != http.StatusOK {
		t.Errorf("when it is back, the decision has the status %d: %s", status, b.text())
	}
	if got := s.status(k); got.Status != once.Done {
		t.Errorf("the key is %v", got.Status)
	}
}
