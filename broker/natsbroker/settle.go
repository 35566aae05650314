package natsbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker/internal/answers"
	"github.com/effectively-once/once/broker/natsbroker/internal/held"
	"github.com/effectively-once/once/broker/natsbroker/internal/parcel"
	"github.com/effectively-once/once/internal/name"
	"github.com/nats-io/nats.go"
)

var errSettled = errors.New("natsbroker: the delivery was settled already, or belongs to another session")

// longestReason is how much of a reason goes into a header.
const longestReason = 1000

// Ack tells the server that messages were dealt with.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.settle(ctx, ds, "+ACK")
}

// Return gives messages back. A delay is the server's to keep, across its restarts; after a change of its leader it may
// be up to a second short, because the time is replicated in seconds.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	body := "-NAK"
	if after > 0 {
		body = fmt.Sprintf(`-NAK {"delay": %d}`, min(after, s.LongestDelay()))
	}
	return s.settle(ctx, ds, body)
}

// Reject terminates messages, after they were published to where dead letters go, if there is such a place.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	reason = name.Line(strings.Join(strings.Fields(reason), " "), longestReason)
	if err := s.bury(ctx, ds, reason); err != nil {
		return err
	}
	return s.settle(ctx, ds, strings.TrimSpace("+TERM "+reason))
}

// LongestDelay has no bound at the server. A year is told from for ever.
func (s *session) LongestDelay() time.Duration { return 365 * 24 * time.Hour }

// KeepsRejected reports whether there is a subject for dead letters.
func (s *session) KeepsRejected() bool { return s.options.DeadLetter != "" }

// bury publishes dead letters. If it fails for one of them, all stay as they are, to be rejected or delivered again.
func (s *session) bury(ctx context.Context, ds []broker.Delivery, reason string) error {
	if s.options.DeadLetter == "" {
		return nil
	}
	s.mu.Lock()
	as, err := s.find(ds)
	s.mu.Unlock()
	if err == nil {
		letters := make([]*nats.Msg, len(as))
		for i, a := range as {
			letters[i] = parcel.Letter(a.Msg, s.options.DeadLetter, reason, s.origin(a))
		}
		err = errors.Join(s.requester.Store(ctx, letters)...)
	}
	if err != nil {
		return fmt.Errorf("natsbroker: publish dead letters to %q: %w", s.options.DeadLetter, err)
	}
	return nil
}

// find returns the arrivals of deliveries that are out. The mutex is held.
func (s *session) find(ds []broker.Delivery) (as []*held.Arrival, err error) {
	if s.broken != nil {
		return nil, fmt.Errorf("natsbroker: the session has ended, and what was out comes again: %w", s.broken)
	}
	for _, d := range ds {
		if a, ok := d.Tag.(*held.Arrival); ok && s.out.Has(a) {
			as = append(as, a)
		} else {
			err = errSettled
		}
	}
	return as, err
}

// settle tells the server about those that are out, and frees their room in the window. With an error, some of them come
// again after AckWait: from here on, nobody asks for more time for them.
func (s *session) settle(ctx context.Context, ds []broker.Delivery, word string) error {
	if err := s.identify(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	as, err := s.find(ds)
	s.out.Settle(as)
	s.rouse()
	s.mu.Unlock()
	if len(as) == 0 {
		return err
	}
	return errors.Join(err, s.tell(ctx, as, word))
}

// tell sends a word about arrivals to the server.
func (s *session) tell(ctx context.Context, as []*held.Arrival, word string) error {
	ms := make([]*nats.Msg, len(as))
	for i, a := range as {
		ms[i] = &nats.Msg{Subject: a.Reply, Data: []byte(word)}
	}
	if s.options.UnconfirmedAcks {
		var err error
		for _, m := range ms {
			err = errors.Join(err, s.nc.PublishMsg(m))
		}
		return err
	}
	got, errs := s.requester.Ask(ctx, ms)
	for i, m := range got {
		if m == nil {
			continue
		}
		if code, text, ok := answers.Status(m); ok {
			errs[i] = fmt.Errorf("natsbroker: %s has no leader just now, or is gone: %s %s", s.Name(), code, text)
		}
	}
	return cmp.Or(errs...) // what is wrong with many is mostly the same
}
