package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const stream = "shop"

// story configures what happens to the consumers.
type story struct {
	orders, kills int
	seed          uint64
}

func (s story) run(ctx context.Context, dir string) (v *verdict, err error) {
	bank := newBank()
	defer bank.Close()
	events, err := startNATS(dir)
	if err != nil {
		return nil, err
	}
	defer events.Shutdown()
	if err := os.WriteFile(filepath.Join(dir, "addresses"), []byte(events.ClientURL()+"\n"+bank.URL), 0o600); err != nil {
		return nil, err
	}
	if err := declare(ctx, events.ClientURL()); err != nil {
		return nil, err
	}
	sh, err := openShop(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer sh.db.Close()
	children, err := startChildren(dir)
	if err != nil {
		return nil, err
	}
	defer children.end()
	if err := s.place(ctx, sh, children); err != nil {
		return nil, err
	}
	return s.await(ctx, sh, bank)
}

const (
	window = 100 * time.Millisecond // deduplication window of the stream, as short as NATS allows, so that it does not help
	later  = 5                      // orders between a message and its copy
)

// place publishes every order, publishes many of them again, and kills the
// consumers meanwhile.
func (s story) place(ctx context.Context, sh *shop, children *children) error {
	chance := rand.New(rand.NewPCG(s.seed, 0))
	every := max(s.orders/max(s.kills, 1), 1)
	var copies []*broker.Message
	for i := range s.orders + later {
		if i == s.orders { // the last copies also come after the window
			if err := pause(ctx, 2*window); err != nil {
				return err
			}
		}
		if i >= later && chance.IntN(2) == 0 { // as if the producer had lost the confirmation
			if errs := sh.publish.Publish(ctx, copies[i-later:i-later+1]); errs != nil {
				return errs[0]
			}
		}
		if i >= s.orders {
			continue
		}
		o := order{ID: fmt.Sprintf("order-%d", i), Customer: fmt.Sprintf("customer-%d", i%7), Item: fmt.Sprintf("item-%d", i%5), Cents: 1000}
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		m := &broker.Message{ID: o.ID, Topic: "order.placed", OrderingKey: o.Customer, Body: body, Time: time.Now()}
		if errs := sh.publish.Publish(ctx, []*broker.Message{m}); errs != nil {
			return errs[0]
		}
		copies = append(copies, m)
		if s.kills > 0 && i%every == every-1 {
			if err := children.killAfter(ctx, time.Duration(chance.IntN(300))*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// await waits until every order is complete or parked.
func (s story) await(ctx context.Context, sh *shop, bank *bank) (*verdict, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(3 * time.Minute); ; {
		v, err := s.count(ctx, sh, bank)
		if err != nil || v.complete() {
			return v, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late:
			return v, fmt.Errorf("after three minutes something is still missing:\n%s", v)
		case <-tick.C:
		}
	}
}

func startNATS(dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, SyncAlways: true,
		StoreDir: filepath.Join(dir, "nats"), NoLog: true, NoSigs: true})
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return nil, fmt.Errorf("NATS did not start")
	}
	return s, nil
}

// declare creates the stream and a durable consumer for each of ours.
func declare(ctx context.Context, url string) error {
	conn, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"order.*"}, Duplicates: window}); err != nil {
		return err
	}
	for name, subject := range map[string]string{"payment": "order.placed", "fulfilment": "order.paid", "loyalty": "order.paid",
		"mail": "order.paid", "analytics": "order.paid"} {
		_, err := js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: name, FilterSubject: subject,
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxDeliver: -1})
		if err != nil {
			return err
		}
	}
	return nil
}

// children runs the processes of the consumers, one after the other.
type children struct {
	dir string
	now *exec.Cmd
}

func startChildren(dir string) (*children, error) {
	c := &children{dir: dir}
	return c, c.start()
}

func (c *children) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.now = exec.Command(self, "-worker", c.dir)
	c.now.Env = append(os.Environ(), "ONCE_ORDERS_WORKER="+c.dir)
	c.now.Stderr = os.Stderr
	return c.now.Start()
}

// killAfter lets the consumers work for a moment, kills them, and restarts
// them.
func (c *children) killAfter(ctx context.Context, d time.Duration) error {
	if err := pause(ctx, d); err != nil {
		return err
	}
	c.end()
	return c.start()
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (c *children) end() {
	_ = c.now.Process.Kill() // SIGKILL: no clean-up runs
	_ = c.now.Wait()
}

// count counts the effects.
func (s story) count(ctx context.Context, sh *shop, bank *bank) (*verdict, error) {
	v := &verdict{story: s, charges: bank.charged(), letters: map[string]int{}}
	rows := map[*int]string{
		&v.reservations: `SELECT count(*) FROM reservation`,
		&v.points:       `SELECT COALESCE(sum(points), 0) FROM points`,
		&v.counted:      `SELECT count(*) FROM counted`,
		&v.countedOnce:  `SELECT count(DISTINCT order_id) FROM counted`,
	}
	for into, query := range rows {
		if err := sh.db.QueryRowContext(ctx, query).Scan(into); err != nil {
			return nil, err
		}
	}
	var err error
	if v.letters, err = letters(sh.outbox); err != nil {
		return nil, err
	}
	if v.published, err = sh.published(ctx); err != nil {
		return nil, err
	}
	parked, err := (inbox.Admin{Store: sh.store}).List(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: 1000})
	for _, m := range parked {
		o, _ := read(&m.Message)
		v.parked = append(v.parked, fmt.Sprintf("%s of %s, which may have been sent when its process was killed", m.Consumer, o.ID))
		if m.Consumer == "mail" && v.letters[o.ID] == 0 {
			v.unsent++
		}
	}
	return v, err
}
