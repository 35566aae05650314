//go:build linux

package brokers_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	amqp "github.com/rabbitmq/amqp091-go"
)

// What AMQP 0-9-1 sends: frames of a type, a channel, a length, a payload and
// an end. The payload of a method begins with its class and number.
const (
	frameHeader = 1 + 2 + 4
	methodFrame = 1
	basicAck    = 60<<16 | 80
	closeOK     = 20<<16 | 41
)

// unconfirmed is a connection that loses the confirms of its first channel
// while losing is set, as a quorum queue does that waits for a lost message.
type unconfirmed struct {
	net.Conn
	from    *bufio.Reader
	ready   bytes.Buffer
	losing  atomic.Bool
	kept    bytes.Buffer // what was lost, which restore sends after all
	restore atomic.Bool
	lost    atomic.Int64 // confirms
	closed  atomic.Int64 // channels
}

func (c *unconfirmed) Read(p []byte) (int, error) {
	for c.ready.Len() == 0 {
		frame, err := c.frame()
		if err != nil {
			return 0, err
		}
		if frame[0] == methodFrame {
			channel, method := binary.BigEndian.Uint16(frame[1:]), binary.BigEndian.Uint32(frame[frameHeader:])
			if method == closeOK {
				c.closed.Add(1)
			}
			if method == basicAck && channel == 1 && c.losing.Load() {
				c.kept.Write(frame)
				c.lost.Add(1)
				continue
			}
		}
		if c.restore.Load() {
			_, _ = c.kept.WriteTo(&c.ready)
		}
		c.ready.Write(frame)
	}
	return c.ready.Read(p)
}

func (c *unconfirmed) frame() ([]byte, error) {
	frame := make([]byte, frameHeader)
	if _, err := io.ReadFull(c.from, frame); err != nil {
		return nil, err
	}
	frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame[3:])+1)...)
	_, err := io.ReadFull(c.from, frame[frameHeader:])
	return frame, err
}

// rabbitUnconfirmed: a channel that confirms nothing more is not used again,
// and what still waits on it may be confirmed.
func rabbitUnconfirmed(t *testing.T, r *rabbit) {
	var conns []*unconfirmed
	p := r.place(t, rabbitbroker.Options{Config: amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, proof.Patience)
		if err != nil {
			return nil, err
		}
		conns = append(conns, &unconfirmed{Conn: conn, from: bufio.NewReader(conn)})
		return conns[len(conns)-1], nil
	}}}, rabbitbroker.QueueOptions{})
	p.publish(t, p.message(1))
	conn := conns[len(conns)-1]
	dialed := len(conns)

	conn.losing.Store(true)
	patient := make(chan []error, 1)
	go func() { patient <- p.publisher.Publish(proof.Soon(t), p.messages(1)) }()
	proof.Await(t, "a confirm is lost", func() bool { return conn.lost.Load() == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if errs := p.publisher.Publish(ctx, p.messages(1)); errs == nil || !errors.Is(errs[0], context.DeadlineExceeded) {
		t.Fatalf("%v, want that the time was over", errs)
	}

	// The relay repeats it. This must not depend on the channel that is stuck.
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), proof.Patience/4)
		if errs := p.publisher.Publish(ctx, []*broker.Message{p.message(2)}); errs != nil {
			t.Fatalf("after a confirm that did not come: %v", errs)
		}
		cancel()
	}
	if closed := conn.closed.Load(); closed != 0 {
		t.Errorf("%d channels were closed while a batch waits", closed)
	}
	conn.losing.Store(false)
	conn.restore.Store(true)
	p.publish(t, p.message(3)) // its confirm brings the lost ones
	if errs := <-patient; errs != nil {
		t.Errorf("the batch that waited: %v", errs)
	}
	proof.Await(t, "the retired channel is closed", func() bool { return conn.closed.Load() == 1 })
	p.publish(t, p.message(4))
	if len(conns) != dialed {
		t.Errorf("%d connections, want %d", len(conns), dialed)
	}
}
