package natsstore

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

// fault is what happens to a request of a client.
type fault int

const (
	none    fault = iota
	request       // it does not arrive
	reply         // its reply does not arrive
	late          // it arrives when the wire is told
)

// wire is between a client and its server. It reads what they say, as far as
// that is needed to lose or to delay requests.
type wire struct {
	// choose is called for each request with its subject and where its reply goes,
	// by one goroutine at a time.
	choose func(subject, inbox string) fault

	mu      sync.Mutex
	lost    map[string]bool // inboxes whose replies do not arrive
	server  net.Conn
	delayed [][]byte
	sent    []string // the subjects of all requests

	replied func(inbox string) // called before a reply is passed; may be nil
}

// dialThrough connects through a wire.
func dialThrough(t *testing.T, url string, w *wire) jetstream.JetStream {
	t.Helper()
	w.lost = make(map[string]bool)
	nc, err := nats.Connect(url, nats.SetCustomDialer(w))
	proof.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	proof.Must(t, err)
	return js
}

// Dial connects the two ends.
func (w *wire) Dial(network, address string) (net.Conn, error) {
	server, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	w.mu.Lock()
	w.server = server
	w.mu.Unlock()
	go func() { w.pass(far, w.write, w.toServer); server.Close() }()
	go func() {
		w.pass(server, func(b []byte) error { _, err := far.Write(b); return err }, w.toClient)
		far.Close()
	}()
	return near, nil
}

func (w *wire) write(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.server.Write(b)
	return err
}

// pass passes frames on, unless keep says that one is not passed.
func (w *wire) pass(from io.Reader, to func([]byte) error, keep func(words []string, frame []byte) bool) {
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		words := strings.Fields(string(line))
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

// toServer handles "PUB subject reply size" and "HPUB subject reply size size".
func (w *wire) toServer(words []string, frame []byte) bool {
	fault := w.choose(words[1], words[2])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, words[1])
	switch fault {
	case reply:
		w.lost[words[2]] = true
	case late:
		w.delayed = append(w.delayed, bytes.Clone(frame))
	}
	return fault == request || fault == late
}

// toClient handles "MSG subject sid size" and "HMSG subject sid size size".
func (w *wire) toClient(words []string, _ []byte) bool {
	if w.replied != nil {
		w.replied(words[1])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost[words[1]]
}

// arrive lets the delayed requests arrive, and returns how many there are.
func (w *wire) arrive(t *testing.T) int {
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

// requests returns how many requests were made since the last call, by the kind
// of their subjects.
func (w *wire) requests() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := make(map[string]int)
	for _, subject := range w.sent {
		n[kindOf(subject)]++
	}
	w.sent = nil
	return n
}

// kindOf returns what a request is for.
func kindOf(subject string) string {
	for _, kind := range []string{"STREAM.INFO", "MSG.GET", "MSG.DELETE", ".open.", ".done."} {
		if strings.Contains(subject, kind) {
			return strings.Trim(kind, ".")
		}
	}
	return fmt.Sprintf("%q", subject)
}
