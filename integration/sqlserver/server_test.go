package sqlserver_test

import (
	"bufio"
	"bytes"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// server implements as much of the protocol of SQL Server as its driver needs.
// It has no database: the test says what it answers. So it shows what the
// driver sends for the statements of a store, and what it does with answers,
// but not how a server executes statements.
type server struct {
	t        testing.TB
	answer   func(question) answer
	implicit bool // IMPLICIT_TRANSACTIONS is on

	mu    sync.Mutex
	asked []question
}

// question is a request to the server: a statement, or the begin or end of a
// transaction.
type question struct {
	text  string // "BEGIN", "COMMIT" and "ROLLBACK" are requests of their own, without text
	types string // the declaration of the parameters, as the driver made it
	args  []any
	inTx  bool
}

// answer is the answer to a question.
type answer struct {
	sets     [][][]any // result sets, of rows, of []byte, int64, string and nil
	affected uint64    // rows, where there is no result set
	number   int32     // of an error
	message  string
	ended    bool // the transaction is over
	hangUp   bool // there is no answer
}

// serve starts a server and returns a database connected to it.
func serve(t testing.TB, say func(question) answer) (*server, *sql.DB) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, answer: say}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.talk(conn) })
		}
	})
	db, err := sql.Open("sqlserver", fmt.Sprintf("sqlserver://u:p@%s?encrypt=disable&protocol=tcp", listener.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		db.Close()
		listener.Close()
		serving.Wait()
	})
	return s, db
}

// texts returns the statements so far.
func (s *server) texts() (all []string) {
	for _, q := range s.questions() {
		all = append(all, q.text)
	}
	return all
}

// questions leaves out the queries that a store sends before its first
// statement.
func (s *server) questions() (all []question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.asked {
		if _, routine := healthy(q); !routine {
			all = append(all, q)
		}
	}
	return all
}

const (
	packetBatch, packetCall, packetReply, packetTransaction = 1, 3, 4, 14
	packetAttention, packetLogin, packetPrelogin            = 6, 16, 18
)

func (s *server) talk(conn net.Conn) {
	defer conn.Close()
	inTx := false
	requests := bufio.NewReader(conn)
	for {
		kind, body, err := readMessage(requests)
		if err != nil {
			return
		}
		var reply []byte
		switch kind {
		case packetPrelogin:
			reply = []byte{1, 0, 6, 0, 1, 0xff, 2} // the only option that matters: no encryption
		case packetLogin:
			reply = append(token(0xad, append([]byte{1, 0x74, 0, 0, 4}, append(shortText(""), 13, 0, 0, 0)...)), done(tokenDone, 0, 0)...)
		case packetAttention:
			s.t.Error("the driver gives up a statement")
			reply = done(tokenDone, doneAttention, 0)
		default:
			q := s.read(kind, body)
			q.inTx = inTx
			s.mu.Lock()
			s.asked = append(s.asked, q)
			s.mu.Unlock()
			a := s.respond(q)
			if a.hangUp {
				return
			}
			inTx = (inTx || q.text == "BEGIN") && !a.ended
			reply = a.encode(q)
			if reply, err = s.holdBack(conn, requests, reply); err != nil {
				return
			}
		}
		if err := writeMessage(conn, reply, true); err != nil {
			return
		}
	}
}

const aMoment = 10 * time.Millisecond

// holdBack sends a reply except its end, which it returns after a moment. In
// that time, the driver must not cancel the request.
func (s *server) holdBack(conn net.Conn, requests *bufio.Reader, reply []byte) ([]byte, error) {
	end := len(reply) - len(done(tokenDone, 0, 0))
	if end <= 0 {
		return reply, nil
	}
	if err := writeMessage(conn, reply[:end], false); err != nil {
		return nil, err
	}
	conn.SetReadDeadline(time.Now().Add(aMoment))
	if early, err := requests.Peek(1); err == nil {
		s.t.Errorf("before it had the whole answer, the driver sent a packet of type %d", early[0])
	}
	return reply[end:], conn.SetReadDeadline(time.Time{})
}

// respond answers questions about transactions and about the tables by itself.
func (s *server) respond(q question) answer {
	if s.implicit && strings.Contains(q.text, "@@OPTIONS") {
		return rows([]any{int64(1)})
	}
	if a, ok := healthy(q); ok {
		return a
	}
	a := s.answer(q)
	if q.text == "COMMIT" || q.text == "ROLLBACK" {
		a.ended = true
	}
	return a
}

func readMessage(r io.Reader) (kind byte, body []byte, err error) {
	for {
		var header [8]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return 0, nil, err
		}
		part := make([]byte, binary.BigEndian.Uint16(header[2:])-8)
		if _, err := io.ReadFull(r, part); err != nil {
			return 0, nil, err
		}
		body = append(body, part...)
		if header[1]&1 != 0 { // the last of them
			return header[0], body, nil
		}
	}
}

const packetSize = 4096

// writeMessage marks only the last part as the end of the message.
func writeMessage(w io.Writer, body []byte, last bool) error {
	for {
		part := body[:min(len(body), packetSize-8)]
		body = body[len(part):]
		header := []byte{packetReply, 0, 0, 0, 0, 0, 1, 0}
		if last && len(body) == 0 {
			header[1] = 1
		}
		binary.BigEndian.PutUint16(header[2:], uint16(len(part)+8))
		if _, err := w.Write(append(header, part...)); err != nil {
			return err
		}
		if len(body) == 0 {
			return nil
		}
	}
}

// read reads a request.
func (s *server) read(kind byte, body []byte) (q question) {
	r := &reader{Buffer: bytes.NewBuffer(body)}
	r.Next(int(r.number(4)) - 4) // the headers
	switch kind {
	case packetBatch:
		q.text = text(r.Bytes())
	case packetTransaction:
		q.text = map[int64]string{5: "BEGIN", 7: "COMMIT", 8: "ROLLBACK"}[r.number(2)]
	case packetCall:
		if r.number(2) != 0xffff || r.number(2) != 10 {
			s.t.Error("the driver calls another procedure than sp_executesql")
			return q
		}
		r.number(2)
		q.text, q.types = r.parameter().(string), r.parameter().(string)
		for r.Len() > 0 {
			q.args = append(q.args, r.parameter())
		}
	default:
		s.t.Errorf("a packet of type %d", kind)
	}
	if r.err != nil {
		s.t.Errorf("the request cannot be read: %v", r.err)
	}
	return q
}

type reader struct {
	*bytes.Buffer
	err error
}

func (r *reader) number(size int) int64 {
	var all [8]byte
	copy(all[:], r.Next(size))
	return int64(binary.LittleEndian.Uint64(all[:]))
}

const typeNull, typeInt, typeBytes, typeText = 0x1f, 0x26, 0xa5, 0xe7

func (r *reader) parameter() any {
	r.Next(2 * int(r.number(1))) // its name
	r.number(1)
	switch kind := r.number(1); kind {
	case typeNull:
		return nil
	case typeInt:
		r.number(1)
		return r.number(int(r.number(1)))
	case typeText:
		size := r.number(2)
		r.Next(5) // the collation
		return text(r.value(size))
	case typeBytes:
		return r.value(r.number(2))
	default:
		r.err = errors.Join(r.err, fmt.Errorf("a parameter of the type %#x", kind))
		r.Reset()
		return nil
	}
}

// value reads a value with its length, or in parts if its type has no limit.
func (r *reader) value(limit int64) []byte {
	if limit != 0xffff {
		return bytes.Clone(r.Next(int(r.number(2))))
	}
	r.number(8)
	var all []byte
	for size := r.number(4); size > 0; size = r.number(4) {
		all = append(all, r.Next(int(size))...)
	}
	return all
}
