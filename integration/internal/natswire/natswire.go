// Package natswire loses and delays requests between a client of NATS and its
// server.
package natswire

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Fault is what happens to a request of a client.
type Fault int

// The faults.
const (
	None    Fault = iota
	Request       // it does not arrive
	Reply         // its reply does not arrive
	Late          // it arrives when the wire is told, and its client has given up
	Stall         // it arrives when the wire is told, and its client waits
)

// Wire is between a client and its server: pass it to [nats.SetCustomDialer]. It
// reads what they say, as far as that is needed to lose or to delay requests.
type Wire struct {
	// Choose is called for each request with its subject and where its reply goes,
	// by one goroutine at a time.
	Choose func(subject, inbox string) Fault

	Replied func(inbox string) // called before a reply is passed; may be nil

	// Delay is called for a request that is delayed, right after Choose, and calls
	// send when it may arrive. If it is nil, the request waits for Arrive.
	Delay func(send func())

	// Cut replies to a request with Request, Reply or Late, or tries to, with an
	// error of the code Cut, so that its client need not wait in vain. 0: it waits.
	Cut int

	mu      sync.Mutex
	lost    map[string]bool // inboxes whose replies do not arrive
	server  net.Conn
	delayed [][]byte
	sent    []string // the subjects of all requests

	toldClient sync.Mutex // held while a frame is written to the client
	client     net.Conn
	inboxes    map[string]string // the number of a subscription, by its subject
}

// Connect connects a client until the end of a test. With w nil, nothing is between
// it and its server.
func Connect(t testing.TB, url string, w *Wire) jetstream.JetStream {
	t.Helper()
	var options []nats.Option
	if w != nil {
		options = append(options, nats.SetCustomDialer(w))
	}
	nc, err := nats.Connect(url, options...)
	proof.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	proof.Must(t, err)
	return js
}

// Dial connects the two ends.
func (w *Wire) Dial(network, address string) (net.Conn, error) {
	server, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	w.mu.Lock()
	w.server, w.client, w.lost, w.inboxes = server, far, make(map[string]bool), make(map[string]string)
	w.mu.Unlock()
	go func() { w.pass(far, w.write, w.toServer); server.Close() }()
	go func() {
		w.pass(server, func(b []byte) error { return w.tell(far, b) }, w.toClient)
		far.Close()
	}()
	return near, nil
}

func (w *Wire) write(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.server.Write(b)
	return err
}

func (w *Wire) tell(client net.Conn, b []byte) error {
	w.toldClient.Lock()
	defer w.toldClient.Unlock()
	_, err := client.Write(b)
	return err
}

// pass passes frames on, unless keep says that one is not passed.
func (w *Wire) pass(from io.Reader, to func([]byte) error, keep func(words []string, frame []byte) bool) {
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		words := strings.Fields(string(line))
		if len(words) > 2 && words[0] == "SUB" {
			w.mu.Lock()
			w.inboxes[words[1]] = words[len(words)-1]
			w.mu.Unlock()
		}
		if len(words) > 0 && strings.Contains(" PUB HPUB MSG HMSG ", " "+words[0]+" ") {
			n, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				return
			}
			payload := make([]byte, n+2)
			if _, err := io.ReadFull(r, payload); err != nil {
				return
			}
			if line = append(line, payload...); keep(words, line) {
				continue
			}
		}
		if to(line) != nil {
			return
		}
	}
}

// toServer handles "PUB subject reply size" and "HPUB subject reply size size",
// where a message that is no request has no reply.
func (w *Wire) toServer(words []string, frame []byte) bool {
	fault := w.Choose(words[1], words[2])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, words[1])
	if fault == Reply || fault == Late {
		w.lost[words[2]] = true
	}
	if fault == Late || fault == Stall {
		w.later(bytes.Clone(frame))
	}
	if fault != None && fault != Stall && w.Cut > 0 {
		w.cut(words[2])
	}
	return fault == Request || fault == Late || fault == Stall
}

// later keeps a frame until it may arrive.
func (w *Wire) later(frame []byte) {
	if w.Delay == nil {
		w.delayed = append(w.delayed, frame)
		return
	}
	w.Delay(func() { _ = w.write(frame) }) // the connection may have ended
}

// cut tells the client that it gets no reply.
func (w *Wire) cut(inbox string) {
	text := fmt.Sprintf(`{"error":{"code":500,"err_code":%d,"description":"cut off on purpose"}}`, w.Cut)
	for subject, number := range w.inboxes {
		if prefix, all := strings.CutSuffix(subject, "*"); subject == inbox || all && strings.HasPrefix(inbox, prefix) {
			client, frame := w.client, fmt.Appendf(nil, "MSG %s %s %d\r\n%s\r\n", inbox, number, len(text), text)
			go func() { _ = w.tell(client, frame) }() // the client reads only while it may write
		}
	}
}

// toClient handles "MSG subject sid size" and "HMSG subject sid size size".
func (w *Wire) toClient(words []string, _ []byte) bool {
	if w.Replied != nil {
		w.Replied(words[1])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost[words[1]]
}

// Arrive lets the delayed requests arrive, and returns how many there are.
func (w *Wire) Arrive(t testing.TB) int {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, frame := range w.delayed {
		_, err := w.server.Write(frame)
		proof.Must(t, err)
	}
	n := len(w.delayed)
	w.delayed = nil
	return n
}

// Subjects returns those of the requests that were made since the last call.
func (w *Wire) Subjects() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := w.sent
	w.sent = nil
	return sent
}
