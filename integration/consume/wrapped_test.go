//go:build linux

package consume

import (
	"context"
	"strings"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/fleet"
)

// observed is a source that records its deliveries, and whose sessions may kill
// the process at their first Ack.
func (p plan) observed(s broker.Source, w *workplace) broker.Source {
	o := &wrapped{Source: s, received: func(ds []broker.Delivery) {
		var lines strings.Builder
		for _, d := range ds {
			lines.WriteString(d.Message.ID + "\n")
		}
		_, _ = w.arrived.WriteString(lines.String()) // only counted
	}}
	if p.AckDies || p.AckDiesIn {
		o.ack = func(ctx context.Context, session broker.Session, ds []broker.Delivery) error {
			if p.AckDies {
				fleet.DieNow()
			}
			if err := session.Ack(ctx, ds); err != nil {
				return err
			}
			fleet.DieNow()
			return nil
		}
	}
	return o
}

// wrapped is a source with another Ack or a function that sees its deliveries.
// Its sessions keep their other capabilities.
type wrapped struct {
	broker.Source
	ack      func(context.Context, broker.Session, []broker.Delivery) error // nil: as it was
	received func([]broker.Delivery)
}

func (w *wrapped) Open(ctx context.Context, window int) (broker.Session, error) {
	s, err := w.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	n := &wrappedSession{s, w}
	if seeker, ok := s.(broker.Seeker); ok {
		return struct {
			*wrappedSession
			broker.Seeker
		}{n, seeker}, nil
	}
	return n, nil
}

type wrappedSession struct {
	broker.Session
	source *wrapped
}

func (n *wrappedSession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := n.Session.Receive(ctx, limit)
	if n.source.received != nil {
		n.source.received(ds)
	}
	return ds, err
}

func (n *wrappedSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	if n.source.ack == nil {
		return n.Session.Ack(ctx, ds)
	}
	return n.source.ack(ctx, n.Session, ds)
}

func (n *wrappedSession) KeepsRejected() bool {
	keeper, ok := n.Session.(broker.DeadLetterer)
	return ok && keeper.KeepsRejected()
}
