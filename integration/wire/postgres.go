package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Postgres is version 3 of the protocol of PostgreSQL.
var Postgres = Protocol{begin: func() conversation {
	return &postgres{prepared: map[string]string{}, portals: map[string]string{}}
}}

type postgres struct {
	started           bool
	prepared, portals map[string]string // SQL by name; used by request only
}

// These codes stand in the place of a version.
const (
	cancelCode = 80877102
	sslCode    = 80877103
	gssCode    = 80877104
)

const longestMessage = 1 << 28

var postgresKinds = map[byte]string{'Q': "Query", 'P': "Parse", 'B': "Bind", 'D': "Describe", 'E': "Execute", 'C': "Close",
	'S': "Sync", 'H': "Flush", 'F': "FunctionCall", 'X': "Terminate", 'd': "CopyData", 'c': "CopyDone", 'f': "CopyFail", 'p': "Password"}

func (p *postgres) request(client *bufio.Reader) (Request, error) {
	if !p.started {
		return p.startup(client)
	}
	var req Request
	for {
		kind, err := client.ReadByte()
		if err != nil {
			return req, err
		}
		body, err := lengthAndBody(client)
		if err != nil {
			return req, err
		}
		req.raw = append(append(req.raw, kind), body...)
		req.Messages = append(req.Messages, p.message(kind, body[4:]))
		switch kind {
		case 'P', 'B', 'D', 'E', 'C': // belongs to the Sync or Flush that follows
		case 'Q', 'S', 'F':
			req.answered = true
			return req, nil
		default:
			return req, nil
		}
	}
}

// startup reads the messages without a kind at the beginning. It declines
// encryption.
func (p *postgres) startup(client *bufio.Reader) (Request, error) {
	body, err := lengthAndBody(client)
	if err != nil {
		return Request{}, err
	}
	if len(body) < 8 {
		return Request{}, fmt.Errorf("a first message of %d bytes", len(body))
	}
	req := Request{raw: body, Messages: []Message{{Kind: "Startup"}}}
	switch binary.BigEndian.Uint32(body[4:]) {
	case sslCode, gssCode:
		req.here = []byte{'N'}
	case cancelCode:
		req.Messages[0].Kind = "Cancel"
	default:
		p.started = true
	}
	return req, nil
}

func (p *postgres) message(kind byte, body []byte) Message {
	m := Message{Kind: postgresKinds[kind]}
	first, rest := text(body)
	switch kind {
	case 'Q':
		m.Text = first
	case 'P':
		m.Text, _ = text(rest)
		p.prepared[first] = m.Text
	case 'B':
		statement, _ := text(rest)
		m.Text = p.prepared[statement]
		p.portals[first] = m.Text
	case 'E':
		m.Text = p.portals[first]
	case 'D', 'C':
		m.Text = p.named(body)
	}
	return m
}

// named returns the SQL of the statement (S) or portal (P) that a Describe or
// Close names.
func (p *postgres) named(body []byte) string {
	if len(body) == 0 {
		return ""
	}
	name, _ := text(body[1:])
	if body[0] == 'P' {
		return p.portals[name]
	}
	return p.prepared[name]
}

func (*postgres) reply(server *bufio.Reader) ([]byte, bool, error) {
	kind, err := server.ReadByte()
	if err != nil {
		return nil, false, err
	}
	body, err := lengthAndBody(server)
	return append([]byte{kind}, body...), kind == 'Z', err // ReadyForQuery
}

// lengthAndBody reads a length, which includes itself, and the body.
func lengthAndBody(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(4)
	if err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head)
	if length < 4 || length > longestMessage {
		return nil, fmt.Errorf("a message of %d bytes: this is not PostgreSQL without encryption", length)
	}
	body := make([]byte, length)
	_, err = io.ReadFull(r, body)
	return body, err
}

// text splits off a string that ends with a zero byte.
func text(b []byte) (string, []byte) {
	before, after, _ := bytes.Cut(b, []byte{0})
	return string(before), after
}
