//go:build linux

package consume

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/effectively-once/once/broker"
)

// script has the messages to publish and their expected ends.
type script struct {
	want     map[string]note // by the name that counts
	ids      map[string]note // by the ID of a message
	messages []*broker.Message
	repeats  int // messages that come twice, by their ID or by their business
}

const (
	plainMessages = 60
	orderKeys     = 6
	items         = 3 // of projections; the last one lacks a version
	versions      = 6
	gapAt         = 3
	poisons       = 2 // without an ordering key; one more has a key of its own, with followers
	followers     = 3
	poisonKey     = "poisoned"
)

// newScript chooses the messages and their order at random.
func newScript(chance *rand.Rand, topic string, s setting) *script {
	c := &script{want: make(map[string]note), ids: make(map[string]note)}
	seqs := make(map[string]int64)
	for i := range plainMessages {
		n := note{Kind: plain}
		if chance.IntN(8) == 0 {
			n.Kind = flaky
		}
		if chance.IntN(3) > 0 {
			n.Ord = fmt.Sprintf("k%d", chance.IntN(orderKeys))
			seqs[n.Ord]++
			n.Seq = seqs[n.Ord]
		}
		if s.keyed && chance.IntN(2) == 0 {
			n.Key = fmt.Sprintf("order-%d", i)
		}
		c.add(n, topic, fmt.Sprintf("m%d", i))
	}
	c.scatter(chance, topic, poisons, func(int) note { return note{Kind: poison} }, "poison")
	c.scatter(chance, topic, 1, func(int) note { return note{Kind: deadly} }, "deadly")
	if s.shape == shapeDo {
		return c.rest(chance, topic, s)
	}
	c.scatter(chance, topic, items*versions, func(i int) note {
		return note{Kind: event, Item: fmt.Sprintf("item%d", i/versions), Version: int64(i%versions + 1)}
	}, "event")
	return c.rest(chance, topic, s)
}

// rest adds a key whose first message always fails, and messages that come
// twice.
func (c *script) rest(chance *rand.Rand, topic string, s setting) *script {
	c.add(note{Kind: poison, Ord: poisonKey, Seq: 1}, topic, "held-poison")
	for i := range followers {
		c.add(note{Kind: plain, Ord: poisonKey, Seq: int64(i + 2)}, topic, fmt.Sprintf("follower%d", i))
	}
	if s.repeats {
		c.repeat(chance, topic)
	}
	return c
}

func (c *script) add(n note, topic, id string) *broker.Message {
	m := n.message(topic, id)
	c.want[nameOf(m, n)] = n
	c.ids[id] = n
	c.messages = append(c.messages, m)
	return m
}

// scatter inserts messages at random places, without the missing version.
func (c *script) scatter(chance *rand.Rand, topic string, n int, make func(int) note, prefix string) {
	for i := range n {
		what := make(i)
		if what.gap() == 0 {
			continue
		}
		m := c.add(what, topic, fmt.Sprintf("%s%d", prefix, i))
		c.messages = slices.Insert(c.messages[:len(c.messages)-1], chance.IntN(len(c.messages)), m)
	}
}

// gap returns how far an event is after the missing version. It is 0 for that
// version itself, and negative if no version before the event is missing.
func (n note) gap() int64 {
	if n.Kind != event || n.Item != fmt.Sprintf("item%d", items-1) {
		return -1
	}
	return n.Version - gapAt
}

// repeat publishes some messages a second time, later than the first.
func (c *script) repeat(chance *rand.Rand, topic string) {
	for _, m := range slices.Clone(c.messages) {
		n := c.ids[m.ID]
		if n.Kind == deadly || chance.IntN(5) > 0 {
			continue
		}
		c.repeats++
		if n.Key != "" { // the same business, under another ID and in other words
			n.Seq += 1000
			m = n.message(topic, m.ID+"-again")
			c.ids[m.ID] = n
		}
		first := slices.IndexFunc(c.messages, func(o *broker.Message) bool {
			return o.ID == m.ID || c.ids[o.ID].Key == n.Key && n.Key != ""
		})
		at := first + 1 + chance.IntN(len(c.messages)-first)
		c.messages = slices.Insert(c.messages, at, m)
	}
}

// harmless returns the messages that do not kill a process.
func (c *script) harmless() []*broker.Message {
	return slices.DeleteFunc(slices.Clone(c.messages), func(m *broker.Message) bool { return c.ids[m.ID].Kind == deadly })
}
