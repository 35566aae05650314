package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/store"
)

// causeJSON is the key that has put a message, as JSON.
type causeJSON struct {
	Scope     string `json:"scope"`
	Operation string `json:"operation"`
	ID        string `json:"id"`
	Key       string `json:"key"`
}

func causeAsJSON(text string) *causeJSON {
	k, ok := store.ParseCause(text)
	if !ok {
		return nil
	}
	return &causeJSON{k.Scope, k.Operation, k.ID, k.String()}
}

// causeText is the key that has put a message, for a table.
func causeText(text string) string {
	k, ok := store.ParseCause(text)
	switch {
	case !ok:
		return ""
	case k.Scope != "":
		return k.Operation + " " + k.ID + " of " + k.Scope
	}
	return k.Operation + " " + k.ID
}

// putJSON is a message that a key has put, and what became of it.
type putJSON struct {
	ID        string        `json:"id"`
	Topic     string        `json:"topic"`
	State     string        `json:"state"`
	Seq       int64         `json:"seq"`
	Attempts  int           `json:"attempts"`
	Created   string        `json:"created"`
	Changed   string        `json:"changed,omitempty"`
	Consumers []handledJSON `json:"consumers"`
}

// handledJSON is what a consumer knows of a message.
type handledJSON struct {
	Consumer string `json:"consumer"`
	Status   string `json:"status"`
	Attempt  int64  `json:"attempt"`
	Updated  string `json:"updated"`
}

const (
	// putTime is how long is looked for what a key has put: no index is on that, so that putting costs no more for it.
	putTime = 5 * time.Second

	maxPut = 100 // in each state
)

// findPut returns what a key has put and the outbox still has, with the consumers that have a record of it by its ID. After an
// error it is what was found before.
func findPut(ctx context.Context, s *session, k once.Key) (put []putJSON, err error) {
	ctx, cancel := context.WithTimeout(ctx, putTime)
	defer cancel()
	consumers, err := s.Store.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	for state := store.Pending; state <= store.Published; state++ {
		q := store.OutgoingQuery{State: state, Cause: store.FormatCause(k), Limit: maxPut, Bodiless: true}
		found, err := s.Store.Outgoing(ctx, q)
		if err != nil {
			return put, err
		}
		for _, m := range found {
			one := putJSON{ID: m.Message.ID, Topic: m.Message.Topic, State: state.String(), Seq: m.Seq, Attempts: m.Attempts,
				Created: stamp(m.Created), Changed: stamp(m.Changed), Consumers: []handledJSON{}}
			for _, consumer := range consumers {
				r, err := s.Store.Get(ctx, once.Key{Operation: consumer.Keys, ID: m.Message.ID})
				if err != nil {
					return put, err
				}
				if !r.Created.IsZero() {
					one.Consumers = append(one.Consumers, handledJSON{consumer.Name, r.Status.String(), r.Attempt, stamp(r.Updated)})
				}
			}
			put = append(put, one)
		}
	}
	return put, nil
}

func printPut(put []putJSON) error {
	t := newTable("PUT", "TOPIC", "STATE", "CONSUMERS")
	for _, m := range put {
		handled := ""
		for i, c := range m.Consumers {
			if i > 0 {
				handled += ", "
			}
			handled += fmt.Sprintf("%s: %s", c.Consumer, c.Status)
		}
		t.Row(m.ID, m.Topic, m.State, show.Short(handled))
	}
	return t.Print(os.Stdout)
}
