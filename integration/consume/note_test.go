//go:build linux

package consume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/fleet"
)

// note is the body of a message. It says what the message is about and what it
// does to its handler.
type note struct {
	Kind    string // see below
	Key     string // of the business; empty: the message's ID
	Ord     string // the ordering key, with
	Seq     int64  // its number in it
	Item    string // of a versioned event
	Version int64
}

// The kinds of messages.
const (
	plain  = "plain"  // is handled
	flaky  = "flaky"  // fails the first time in each process
	poison = "poison" // always fails
	deadly = "deadly" // kills the process
	fatal  = "fatal"  // kills it a while later, when others have begun
	slow   = "slow"   // is handled, and takes its time
	event  = "event"  // changes a projection
)

func (n note) message(topic, id string) *broker.Message {
	body, _ := json.Marshal(n) // texts and numbers cannot fail
	return &broker.Message{ID: id, Topic: topic, OrderingKey: n.Ord, Body: body, Time: time.Now()}
}

func noteOf(m *broker.Message) (n note, err error) {
	err = json.Unmarshal(m.Body, &n)
	return n, err
}

// key is a Consumer.Key: the ID of the business.
func key(m *broker.Message) (string, error) {
	n, err := noteOf(m)
	if err != nil || n.Key == "" {
		return m.ID, err
	}
	return n.Key, nil
}

// workplace has the handlers of one process.
type workplace struct {
	process string
	calls   *os.File // a line for each attempt at a message: what is rolled back leaves a trace only there
	arrived *os.File // and for each delivery

	mu   sync.Mutex
	seen map[string]bool
}

func newWorkplace(process, calls string) (*workplace, error) {
	open := func(name string) (*os.File, error) {
		return os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	}
	f, err := open(calls)
	if err != nil {
		return nil, err
	}
	d, err := open(calls + deliveries)
	return &workplace{process: process, calls: f, arrived: d, seen: make(map[string]bool)}, err
}

const deliveries = ".deliveries"

// begin records an attempt, and fails or dies if the message says so.
func (w *workplace) begin(m *broker.Message) (note, error) {
	n, err := noteOf(m)
	if err != nil {
		return n, err
	}
	if _, err := w.calls.WriteString(m.ID + "\n"); err != nil {
		return n, err
	}
	switch n.Kind {
	case poison:
		return n, errors.New("poison: it always fails")
	case deadly:
		fleet.DieNow()
	case fatal:
		pause(200 * time.Millisecond)
		fleet.DieNow()
	case slow:
		pause(400 * time.Millisecond)
	case flaky:
		w.mu.Lock()
		first := !w.seen[m.ID]
		w.seen[m.ID] = true
		w.mu.Unlock()
		if first {
			return n, errors.New("flaky: it fails the first time")
		}
	}
	return n, nil
}

// handle writes the effect of a message.
func (w *workplace) handle(_ context.Context, tx rows, m *broker.Message) error {
	n, err := w.begin(m)
	if err != nil {
		return err
	}
	if n.Kind == event {
		if err := w.project(tx, n); err != nil {
			return err
		}
	}
	_, err = tx.Exec(addEffect, "handled", nameOf(m, n), n.Ord, n.Seq, w.process)
	return err
}

// handleAll is handle for a batch. It names the message that failed only if the
// batch has an even size, so that halving is tested too.
func (w *workplace) handleAll(ctx context.Context, tx rows, ms []*broker.Message) error {
	for i, m := range ms {
		if err := w.handle(ctx, tx, m); err != nil {
			if len(ms)%2 == 0 {
				return inbox.Failed(ms[i], err)
			}
			return err
		}
	}
	return nil
}

// project moves a projection to the version of an event, and records that it
// did.
func (w *workplace) project(tx rows, n note) error {
	written := false
	err := inbox.Versions{Every: 20 * time.Millisecond}.Apply(n.Version,
		func(from, to int64) (bool, error) {
			changed, err := tx.Exec(setVersion, n.Version, n.Item, from, to)
			written = changed == 1
			return written, err
		},
		func() (have int64, err error) {
			err = tx.Ask(&have, getVersion, n.Item)
			return have, err
		})
	if err != nil || !written {
		return err
	}
	_, err = tx.Exec(addEffect, "applied", fmt.Sprintf("%s v%d", n.Item, n.Version), n.Item, n.Version, w.process)
	return err
}

// nameOf returns the ID that must be handled once.
func nameOf(m *broker.Message, n note) string {
	if n.Key != "" {
		return n.Key
	}
	return m.ID
}
