package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// causeJSON is the JSON form of the key that put a message.
type causeJSON struct {
	Scope     string `json:"scope"`
	Operation string `json:"operation"` // empty: only the form that travels is known
	ID        string `json:"id"`
	Key       string `json:"key"`
}

func keyAsCause(k once.Key) *causeJSON { return &causeJSON{k.Scope, k.Operation, k.ID, k.String()} }

func causeAsJSON(text string) *causeJSON {
	k, ok := store.ParseCause(text)
	if !ok {
		return nil
	}
	return keyAsCause(k)
}

// text formats the key for a table. It returns "" for nil.
func (c *causeJSON) text() string {
	switch {
	case c == nil:
		return ""
	case c.Operation == "":
		return c.Key
	case c.Scope != "":
		return c.Operation + " " + c.ID + " of " + c.Scope
	}
	return c.Operation + " " + c.ID
}

// causes finds keys by their digests.
type causes struct {
	*target.Target
	known map[[16]byte]*causeJSON
}

func newCauses(s *session) causes { return causes{s.Target, make(map[[16]byte]*causeJSON)} }

// of is the key with a digest, readable if this store has a record of it; nil if the digest is zero. After an error it is
// what is known without the store.
func (c causes) of(ctx context.Context, digest [16]byte) (*causeJSON, error) {
	if digest == [16]byte{} {
		return nil, nil
	}
	if found := c.known[digest]; found != nil {
		return found, nil
	}
	found := &causeJSON{Key: name.Format(digest)}
	k, err := store.FindKey(ctx, c.Store, digest)
	if k != (once.Key{}) {
		found = keyAsCause(k)
	}
	c.known[digest] = found
	return found, err
}

// ofShelved is the key that has put a message on the shelf. The header may be sealed, or not read; the record of the
// message is not there if its consumer keeps a position only.
func (c causes) ofShelved(ctx context.Context, m store.Shelved) (*causeJSON, error) {
	digest := name.Parse(m.Message.Header[store.KeyHeader])
	if digest == [16]byte{} && m.Key != "" {
		recs, _, err := c.List(ctx, once.RecordQuery{UUID: m.Unit().UUID()})
		if err != nil {
			return nil, err
		}
		if len(recs) > 0 {
			digest = recs[0].Cause
		}
	}
	return c.of(ctx, digest)
}

// causesOf are the keys that have put messages on the shelf, one for each, nil where none is known. They are looked for one
// by one, for a bounded time: what was asked for are the messages.
func causesOf(ctx context.Context, s *session, ms []store.Shelved) []*causeJSON {
	ctx, cancel := context.WithTimeout(ctx, putTime)
	defer cancel()
	c, all := newCauses(s), make([]*causeJSON, len(ms))
	for i, m := range ms {
		var err error
		if all[i], err = c.ofShelved(ctx, m); err != nil {
			note("The search for the keys that put them did not finish: %v", err)
			break
		}
	}
	return all
}

// causesOfKeys are the keys that have put the messages which keys are of, one for each, nil where there is none. They are
// looked for as those of messages are.
func causesOfKeys(ctx context.Context, s *session, recs []once.Record) []*causeJSON {
	ctx, cancel := context.WithTimeout(ctx, putTime)
	defer cancel()
	c, all := newCauses(s), make([]*causeJSON, len(recs))
	for i, r := range recs {
		var err error
		if all[i], err = c.of(ctx, r.Cause); err != nil {
			note("The search for the keys that caused them did not finish: %v", err)
			break
		}
	}
	return all
}

// putJSON is a message that a key has put, as it is in the outbox.
type putJSON struct {
	ID       string `json:"id"`
	Topic    string `json:"topic"`
	State    string `json:"state"`
	Seq      int64  `json:"seq"`
	Attempts int    `json:"attempts"`
	Created  string `json:"created"`
	Changed  string `json:"changed,omitempty"`
}

const (
	// putTime is how long causes are looked for, or what a key has put: the outbox has no index on that, so that putting
	// costs no more for it.
	putTime = 5 * time.Second

	maxPut = 100 // in each state, and as many records
)

// traces are what the work of a key has left elsewhere.
type traces struct {
	cause *causeJSON    // that has put the message which the key is of
	ledTo []once.Record // of the messages that the key has put
	put   []putJSON     // that the outbox still has
	cut   bool          // there may be more than this
}

// findTraces looks for them for a bounded time. After an error it returns what was found before.
func findTraces(ctx context.Context, s *session, r once.Record) (found traces, err error) {
	ctx, cancel := context.WithTimeout(ctx, putTime)
	defer cancel()
	in, err := store.FindTraces(ctx, s.Store, r, maxPut)
	switch {
	case in.Cause != once.Key{}:
		found.cause = keyAsCause(in.Cause)
	case r.Cause != [16]byte{}:
		found.cause = &causeJSON{Key: name.Format(r.Cause)}
	}
	found.ledTo, found.cut = in.LedTo, in.Cut
	for _, m := range in.Put {
		found.put = append(found.put, putJSON{m.Message.ID, m.Message.Topic, m.State.String(), m.Seq, m.Attempts, stamp(m.Created), stamp(m.Changed)})
	}
	return found, err
}

// print prints the traces below a key.
func (t *traces) print() error {
	if len(t.put) > 0 {
		table := newTable("PUT", "TOPIC", "STATE", "ATTEMPTS")
		for _, m := range t.put {
			table.Row(m.ID, m.Topic, m.State, fmt.Sprint(m.Attempts))
		}
		fmt.Println()
		if err := table.Print(os.Stdout); err != nil {
			return err
		}
	}
	if len(t.ledTo) > 0 {
		table := newTable("LED TO", "ID", "SCOPE", "STATUS", "CHANGED", "ATTEMPT", "REASON")
		for _, r := range t.ledTo {
			table.Row(r.Key.Operation, r.Key.ID, r.Key.Scope, r.Status.String(), show.Ago(unchanged(r)), fmt.Sprint(r.Attempt),
				show.Short(r.Why()))
		}
		fmt.Println()
		return table.Print(os.Stdout)
	}
	return nil
}
