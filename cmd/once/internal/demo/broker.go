package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker"
)

const (
	stream          = "shop"
	duplicateWindow = 100 * time.Millisecond // in which the stream drops copies: as short as NATS lets it be, because it is not to help
	ackWait         = time.Second            // after which the messages of a killed process come again
	startTime       = 20 * time.Second
)

var consumers = []string{"billing", "points", "letters"}

// events is a NATS server with JetStream in this process. It can be stopped and started, and keeps what it has.
type events struct {
	options server.Options
	conn    *nats.Conn
	js      jetstream.JetStream
	publish broker.Publisher
	server  *server.Server
}

func startEvents(ctx context.Context, dir string) (*events, error) {
	e := &events{options: server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, SyncAlways: true,
		StoreDir: dir, NoLog: true, NoSigs: true}}
	if err := e.start(); err != nil {
		return nil, err
	}
	e.options.Port = e.server.Addr().(*net.TCPAddr).Port // the same again after an outage
	if err := e.declare(ctx); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *events) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", e.options.Port) }

func (e *events) start() error {
	options := e.options // the server writes into its own
	s, err := server.NewServer(&options)
	if err != nil {
		return fmt.Errorf("the broker of the demo: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(startTime) {
		s.Shutdown()
		return errors.New("the broker of the demo did not start")
	}
	e.server = s
	return nil
}

// stop takes the server away from everybody at once.
func (e *events) stop() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
}

// restart starts it again, and waits until somebody waits for the messages of each consumer: so that what comes next is
// not delivered together, when they come back.
func (e *events) restart(ctx context.Context) error {
	if err := e.start(); err != nil {
		return err
	}
	for late := time.Now().Add(startTime); time.Now().Before(late) && ctx.Err() == nil; pause(ctx, pollEvery) {
		back := 0
		for _, name := range consumers {
			if c, err := e.js.Consumer(ctx, stream, name); err == nil && c.CachedInfo().NumWaiting > 0 {
				back++
			}
		}
		if back == len(consumers) {
			break
		}
	}
	return ctx.Err()
}

func (e *events) close() {
	if e.conn != nil {
		e.conn.Close()
	}
	e.stop()
}

// declare makes the stream, and a durable consumer for each of ours.
func (e *events) declare(ctx context.Context) (err error) {
	if e.conn, err = nats.Connect(e.url(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)); err != nil {
		return err
	}
	if e.js, err = jetstream.New(e.conn); err != nil {
		return err
	}
	if _, err = e.js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{topic}, Duplicates: duplicateWindow}); err != nil {
		return err
	}
	for _, name := range consumers {
		_, err := e.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: ackWait, MaxDeliver: -1})
		if err != nil {
			return err
		}
	}
	e.publish = natsbroker.New(e.js, &natsbroker.Options{DuplicateWindow: duplicateWindow, ReplyWait: publishTime}).Publisher()
	return nil
}

// again publishes a copy of a message later: not before the stream has ceased to drop it.
func (e *events) again(ctx context.Context, m *broker.Message, later time.Duration) {
	for pause(ctx, later); ctx.Err() == nil; pause(ctx, pollEvery) {
		if e.publish.Publish(ctx, []*broker.Message{m}) == nil {
			return
		}
	}
}

// load tells how many deliveries there were, and how many messages are with the broker or out.
func (e *events) load(ctx context.Context) (delivered, open int, err error) {
	for _, name := range consumers {
		c, err := e.js.Consumer(ctx, stream, name)
		if err != nil {
			return 0, 0, err
		}
		info := c.CachedInfo()
		delivered += int(info.Delivered.Consumer)
		open += int(info.NumPending) + info.NumAckPending
	}
	return delivered, open, nil
}
