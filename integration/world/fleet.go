package world

import (
	"slices"
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// Fleet is what a world of messages has beside one ledger and one mailer of each
// topic. The zero value is nothing.
type Fleet struct {
	Readers []Reader // more consumers, each with a transaction
	Next    float64  // messages of which a consumer puts one or two others when it handles them
	Far     bool     // the bridge puts each message again, on the last topic
	Retires bool     // people retire one of the readers
	Returns bool     // and have it continue later
	Keep    Keep     // what is forgotten, and when

	FailsOver bool // a replica takes over as the store, and lacks the last commits
}

// Reader is a consumer of all topics but the last one, if that is Far.
type Reader struct {
	Name  string
	Shape Shape
}

// bridgeName is the reader that puts each message again.
const bridgeName = "bridge"

func (f Fleet) names() (all []string) {
	for _, r := range f.Readers {
		all = append(all, r.Name)
	}
	return all
}

// far is the number of topics on which no producer puts messages.
func (f Fleet) far() int {
	if f.Far {
		return 1
	}
	return 0
}

// shapeOf is the shape of a consumer with a transaction.
func (p MailPlan) shapeOf(consumer string) Shape {
	for _, r := range p.Fleet.Readers {
		if r.Name == consumer {
			return r.Shape
		}
	}
	if consumer == ledgerName {
		return p.Shape
	}
	return Shape{}
}

// isFar reports whether a topic is the one of the bridge.
func (p MailPlan) isFar(topic string) bool {
	return p.Fleet.Far && topic == p.Topics[len(p.Topics)-1]
}

// readersOf are the consumers of a topic. Only the ledger and the mailer read what
// the bridge puts. One that is retired reads nothing.
func (l *ledger) readersOf(topic string) []string {
	return slices.DeleteFunc(slices.Clone(l.consumers), func(c string) bool {
		return l.rules.isFar(topic) && c != ledgerName && c != mailerName || !l.isNotGone(c, topic)
	})
}

// fleetSettings are those of a small world, with stops in order.
func fleetSettings(seed sim.Seed) sim.Settings {
	s := shapesSettings(seed)
	switch s.Length = 90 * time.Second; {
	case retires(seed):
		s.Length = 9 * time.Minute // a consumer has to be silent for five
	case keeps(seed):
		s.Length = 7 * time.Minute // it may be away for as long
	}
	return s
}

// retires reports whether people retire a consumer in the world of a seed.
func retires(seed sim.Seed) bool {
	d := seed.Draw("retires")
	return d.Chance(.3)
}

// keeps reports whether keys are forgotten in the world of a seed.
func keeps(seed sim.Seed) bool {
	d := seed.Draw("keeps")
	return !retires(seed) && d.Chance(.4)
}

// fleetMail is a small world with several consumers of each topic, of which some put
// messages.
func fleetMail(seed sim.Seed) MailPlan {
	p := shapesMail(seed)
	d := seed.Draw("fleet")
	if d.Chance(.25) {
		p = carriedMail(seed)
	}
	p.PerKey, p.Processes, p.Operators, p.Poison = 4, min(p.Processes, 2), 0, 0
	p.Fleet.Next = oneOf(&d, 0, .3, .6)
	for _, name := range []string{"audit", "billing"}[:d.Number(3)] {
		p.Fleet.Readers = append(p.Fleet.Readers, Reader{name, p.readerShape(&d)})
	}
	if p.Fleet.Far = d.Chance(.5); p.Fleet.Far {
		p.Topics = append(slices.Clone(p.Topics), "far")
		p.Fleet.Readers = append(p.Fleet.Readers, Reader{bridgeName, p.readerShape(&d)})
	}
	if p.Fleet.Retires = retires(seed); p.Fleet.Retires {
		p.Fleet.Readers = append(p.Fleet.Readers, Reader{retiredName, p.readerShape(&d)})
		p.Fleet.Returns, p.Renames = !p.Carrier.On && d.Chance(.5), false
	}
	if keeps(seed) {
		p.Fleet.Keep, p.Deadly = p.keepsOf(&d), 0
	}
	p.Fleet.FailsOver = !retires(seed) && !keeps(seed) && d.Chance(.5)
	return p
}

// readerShape draws a shape with a key for each message, as what is put once more
// would be another message.
func (p MailPlan) readerShape(d *sim.Draw) Shape {
	s := Shape{Names: d.Chance(.5), BatchSize: oneOf(d, 0, 2, 5)}
	switch n := d.Number(3); {
	case n == 1:
		s.Batch = true
	case n == 2 && !p.Queues && !p.Carrier.On:
		s.Position, s.Keyed = true, true
	}
	return s
}
