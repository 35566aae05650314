package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/memstore"
)

var errBusiness = errors.New("world: the business fails")

// handler handles the messages of a consumer in a process.
type handler struct {
	*mail
	p        *sim.Process
	consumer string
	company  bool // several messages are handled at once
}

// inTx handles a message with a row in the database.
func (h *handler) inTx(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
	begun := time.Now()
	h.ledger.begins(m.ID, h.consumer)
	err := h.attempt(m, func() error { return h.row(ctx, tx, m) })
	if err == nil {
		h.ledger.succeeds(h.p, m.ID, h.consumer, begun)
	}
	return err
}

func (h *handler) row(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
	if err := h.business(ctx, m); err != nil {
		return err
	}
	return h.insert(ctx, tx, m)
}

func (h *handler) insert(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
	insert := sim.Call{Links: sim.StoreLinks, What: "Insert", About: h.consumer + "/" + m.ID, Faults: sim.ReadFault}
	err := sim.Do(ctx, h.p, insert, func(context.Context) error {
		h.ledger.within(tx, fact{h.consumer, m.ID})
		return nil
	})
	if err == nil {
		err = h.putNext(ctx, tx, m)
	}
	return err
}

// effect handles a message with an effect at the downstream.
func (h *handler) effect(ctx context.Context, k once.Key, m *broker.Message) (answer string, err error) {
	err = h.attempt(m, func() error {
		if err := h.business(ctx, m); err != nil {
			return once.NotDone(err)
		}
		answer, err = h.call(ctx, h.p, k, h.consumer, m.ID)
		h.linger(ctx, m)
		return err
	})
	return answer, err
}

// attempt is attempts of one message.
func (h *handler) attempt(m *broker.Message, handle func() error) error {
	return h.attempts([]*broker.Message{m}, handle)
}

// business takes its time, and fails if it is to.
func (h *handler) business(ctx context.Context, m *broker.Message) error {
	if h.isDeadly(m.ID) {
		return h.deadly(ctx, m)
	}
	if err := h.needs(ctx, m); err != nil {
		return err
	}
	if d := h.slowness(h.consumer, m.ID); d > 0 {
		if err := sim.Sleep(ctx, d); err != nil {
			return err
		}
	}
	if h.isSick(m.Topic) {
		return inbox.Unavailable(errSick)
	}
	if h.ledger.mustFail(m.ID, h.consumer, h.failsAt(h.consumer, m.ID), !h.company) {
		return h.failure(m)
	}
	return nil
}

// call makes an effect at the downstream.
func (m *mail) call(ctx context.Context, p *sim.Process, k once.Key, consumer, id string) (string, error) {
	c := sim.Call{Links: []sim.Link{Downstream}, What: "Effect", About: sim.KeyText(k), Faults: sim.WriteFault}
	err := sim.Do(ctx, p, c, func(context.Context) error {
		m.ledger.effect(sim.KeyText(k), consumer, id)
		return nil
	})
	if errors.Is(err, sim.ErrDown) {
		err = once.NotDone(err)
	}
	return "ok", err
}

// operation can ask the downstream.
func (m *mail) operation(p *sim.Process, name string) *once.Operation[string] {
	if m.Blind && name != callName {
		return &once.Operation[string]{Name: name, OnUnknown: once.Park}
	}
	return &once.Operation[string]{Name: name, SettleTime: m.Counting.settleTime(),
		Lookup: func(ctx context.Context, k once.Key) (string, bool, error) {
			c := sim.Call{Links: []sim.Link{Downstream}, What: "Lookup", About: sim.KeyText(k), Faults: sim.ReadFault}
			found, err := sim.Cross(ctx, p, c, func(context.Context) (bool, error) { return m.ledger.hasEffect(sim.KeyText(k)), nil })
			return "ok", found && err == nil, err
		}}
}

const callName = "charge"

// startProducer starts a process that puts the messages of an ordering key, one
// after the other, and one that calls the downstream beside it.
func (m *mail) startProducer(k int) {
	topic, key := m.Topics[k%(len(m.Topics)-m.Fleet.far())], fmt.Sprintf("k%d", k+1)
	if m.Without["producer"+key] {
		return
	}
	orders := &producer{mail: m, topic: topic}
	if !m.Unordered {
		orders.key = key
	}
	var before *letter
	for n := range m.PerKey {
		id := fmt.Sprintf("%s-%03d", key, n+1)
		m.ledger.never(id+refusedOrder, orders.topicOf(n), orders.key)
		at := m.ledger.plan(id, orders.topicOf(n), orders.key, before)
		orders.letters = append(orders.letters, at)
		m.planNext(at, 0)
		if !m.Unordered {
			before = at
		}
	}
	m.Start("producer"+key, orders.run)
	if m.Calls > 0 {
		m.Start("caller"+key, m.caller)
	}
}

type producer struct {
	*mail
	topic, key string
	letters    []*letter
}

// topicOf is the topic of the n-th message.
func (o *producer) topicOf(n int) string {
	if o.Mixed {
		return o.Topics[n%len(o.Topics)]
	}
	return o.topic
}

func (o *producer) run(ctx context.Context, p *sim.Process) error {
	for _, topic := range o.follow(o.topic) {
		if o.awaitConsumers(ctx, p, topic) != nil {
			return nil
		}
	}
	for n, at := range o.letters {
		if o.ledger.isPut(at.id) {
			continue
		}
		d := o.Seed.Draw("pause before", at.id)
		if sim.Sleep(ctx, d.Between(0, o.pause(n))) != nil {
			return nil
		}
		for o.put(ctx, p, at) != nil {
			again := o.DrawNth(p.Name, "waits to put again", at.id)
			if sim.Sleep(ctx, again.Between(time.Second, 5*time.Second)) != nil {
				return nil
			}
		}
	}
	<-ctx.Done()
	return nil
}

const burst = 20 // messages

// pause is the longest pause before a message. Together, they are shorter than the
// world.
func (o *producer) pause(n int) time.Duration {
	switch {
	case !o.Bursts:
		return o.Length / time.Duration(o.PerKey+1)
	case n%burst == 0:
		return o.Length / time.Duration(o.PerKey/burst+1)
	}
	return 20 * time.Millisecond
}

// put puts a message in the transaction of its order. Some orders are refused
// before that, when their message was put already.
func (o *producer) put(ctx context.Context, p *sim.Process, at *letter) error {
	if _, refused := o.Trait("a refused order before "+at.id, o.Refused); refused {
		err := o.order(ctx, p, at, refusedOrder, func(*memstore.Tx) error { return once.ErrRejected })
		if !errors.Is(err, once.ErrRejected) {
			return err
		}
	}
	return o.order(ctx, p, at, "", func(tx *memstore.Tx) error {
		o.ledger.within(tx, fact{id: at.id})
		return nil
	})
}

// order puts a message, and then does the rest of the transaction.
func (o *producer) order(ctx context.Context, p *sim.Process, at *letter, suffix string, then func(*memstore.Tx) error) error {
	s, id := o.store.Link(p), at.id+suffix
	op := &once.Operation[string]{Name: "order"}
	return o.within(ctx, s, op.For(id), func(ctx context.Context, tx *memstore.Tx) (string, error) {
		m := &broker.Message{ID: id, Topic: at.topic, OrderingKey: o.key, Body: []byte(id)}
		if o.log != nil {
			o.log.put(tx, m)
		} else if err := outbox.New(s, nil).Put(ctx, tx, m); err != nil {
			return "", err
		}
		return "", then(tx)
	})
}

// refusedOrder ends the ID of a message whose transaction is rolled back.
const refusedOrder = "-refused"

// caller calls the downstream now and then.
func (m *mail) caller(ctx context.Context, p *sim.Process) error {
	op := m.operation(p, callName)
	for n := range m.Calls {
		id := fmt.Sprintf("%s-%d", p.Name, n+1)
		d := m.Seed.Draw("pause before", id)
		if sim.Sleep(ctx, d.Between(0, m.Length/time.Duration(m.Calls+1))) != nil {
			return nil
		}
		work := op.For(id)
		if n%2 == 1 { // a step of a larger work, which nobody repeats
			work = op.Under((&once.Operation[string]{Name: "order"}).For(id).Key())
		}
		_, _ = once.Do(ctx, m.store.Link(p), work, func(ctx context.Context, k once.Key) (string, error) {
			return m.call(ctx, p, k, "", "")
		}) // what became of it is the reconciler's to find out
	}
	<-ctx.Done()
	return nil
}
