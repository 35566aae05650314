//go:build linux

package crash

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
)

// protocol returns what the bytes of one write ask of the server.
type protocol func(written []byte) string

// dialer makes connections that pass the trap before a request is written, when
// it is on its way, and when the first bytes of its answer have arrived but
// were not read.
func dialer(t *trap, newProtocol func() protocol) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wire{Conn: c, trap: t, label: newProtocol()}, nil
	}
}

// nothing is the label of a request that changes nothing. It is not a boundary.
const nothing = ""

type wire struct {
	net.Conn
	trap  *trap
	label protocol

	mu      sync.Mutex
	waiting string // the boundary that waits for its answer
}

func (w *wire) Write(b []byte) (int, error) {
	label := w.label(b)
	if label == nothing {
		return w.Conn.Write(b)
	}
	boundary := w.trap.reach("wire:" + label)
	w.trap.pass(boundary, "before")
	w.expect(boundary)
	n, err := w.Conn.Write(b)
	w.trap.pass(boundary, "sent")
	return n, err
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.trap.pass(w.expect(""), "answered")
	}
	return n, err
}

// expect sets which answer comes next, and returns the one that was expected
// before.
func (w *wire) expect(boundary string) (before string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.waiting = w.waiting, boundary
	return before
}

// ping is a comment that pgx sends to check that an idle connection is alive.
const ping = "ping"

// postgres returns the names of the statements that a write runs. Prepared
// statements are known from when they were parsed, which changes nothing and is
// not a boundary.
func postgres() protocol {
	prepared := map[string]string{}
	return func(b []byte) string {
		var asked []string
		for len(b) >= 5 {
			kind, size := b[0], int(binary.BigEndian.Uint32(b[1:5]))+1
			if kind == 0 { // the first message of a connection has no kind
				return "connect"
			}
			if size > len(b) || size < 5 {
				break
			}
			body := string(b[5:size])
			b = b[size:]
			switch kind {
			case 'Q':
				if v := verb(body); v != ping {
					asked = append(asked, v)
				}
			case 'P':
				name, text, _ := strings.Cut(body, "\x00")
				prepared[name] = verb(text)
			case 'B':
				_, rest, _ := strings.Cut(body, "\x00")
				name, _, _ := strings.Cut(rest, "\x00")
				asked = append(asked, prepared[name])
			case 'p':
				asked = append(asked, "password")
			}
		}
		return strings.Join(asked, "+")
	}
}

// mysqlProtocol returns the name of the command in a packet, or of the
// handshake.
func mysqlProtocol() protocol {
	const header, quit, query, prepare, execute, closing = 4, 0x01, 0x03, 0x16, 0x17, 0x19
	return func(b []byte) string {
		if len(b) <= header || b[header-1] != 0 { // a command begins a sequence
			return "connect"
		}
		switch text := string(b[header+1:]); b[header] {
		case query:
			return verb(text)
		case execute:
			return "execute"
		case prepare, closing, quit:
			return nothing
		}
		return "other"
	}
}

// verb returns the first word of a statement.
func verb(statement string) string {
	words := strings.FieldsFunc(strings.TrimPrefix(statement, "--"), func(r rune) bool { return r <= ' ' || r == ';' || r == '\x00' || r == '(' })
	if len(words) == 0 {
		return "nothing"
	}
	return strings.ToLower(words[0])
}
