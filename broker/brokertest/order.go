package brokertest

import (
	"fmt"
	"slices"

	"github.com/effectively-once/once/broker"
)

func orderRules() []rule {
	return []rule{
		{"order/batch", "messages with an equal ordering key arrive in the order of the slice", orderBatch},
		{"order/calls", "messages with an equal ordering key arrive in the order of the calls", orderCalls},
		{"order/slowly", "messages of one ordering key come in order if each is settled before the next", orderSlowly},
	}
}

// interleaved returns n messages of each of several ordering keys.
func (b *bench) interleaved(keys, n int) (ms []*broker.Message) {
	for range n {
		for key := range keys {
			ms = append(ms, b.message(fmt.Sprint("key ", key)))
		}
	}
	return ms
}

// inOrder fails unless the deliveries of each ordering key are in the order of
// ms.
func (b *bench) inOrder(ms []*broker.Message, ds []broker.Delivery) {
	last := make(map[string]int)
	for _, d := range ds {
		i := slices.IndexFunc(ms, func(m *broker.Message) bool { return m.ID == d.Message.ID })
		if before, ok := last[d.Message.OrderingKey]; ok && i < before {
			b.failf("message %d of the ordering key %q came after message %d", i, d.Message.OrderingKey, before)
		}
		last[d.Message.OrderingKey] = i
	}
}

// getInTurn is get for messages of ordering keys. If the broker delivers them one
// by one, it acknowledges each.
func (b *bench) getInTurn(s broker.Session, ms []*broker.Message) (got []broker.Delivery) {
	if !b.OneByOne {
		return b.get(s, ms)
	}
	for len(got) < len(ms) {
		ds := b.receive(s, wide)
		got = append(got, ds...)
		b.ack(s, ds...)
	}
	return got
}

// ordered skips the case if the broker keeps no order.
func (b *bench) ordered() {
	b.needs(!b.Unordered, "the broker does not keep the order of an ordering key")
}

func orderBatch(b *bench) {
	b.ordered()
	s := b.open(wide * wide)
	ms := b.interleaved(4, 50)
	b.publish(ms...)
	b.inOrder(ms, b.getInTurn(s, ms))
}

func orderCalls(b *bench) {
	b.ordered()
	ms := b.interleaved(4, 25)
	for batch := range slices.Chunk(ms, 7) {
		b.publish(batch...)
	}
	b.inOrder(ms, b.getInTurn(b.open(wide*wide), ms))
}

func orderSlowly(b *bench) {
	b.ordered()
	s := b.open(3)
	ms := b.interleaved(1, 20)
	b.publish(ms...)
	var got []broker.Delivery
	for len(got) < len(ms) {
		d := b.receive(s, 1)
		got = append(got, d...)
		b.ack(s, d...)
	}
	b.inOrder(ms, got)
	if len(distinct(got)) != len(ms) {
		b.failf("%d messages were published, and %d came", len(ms), len(distinct(got)))
	}
}
