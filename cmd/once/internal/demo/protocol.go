package demo

import "github.com/effectively-once/once/broker"

// The demo and its processes speak JSON lines over their stdin and stdout. A process gets its setup first, and says where
// it serves. From then on it asks at each point at which its order may meet its fate, and waits for the answer. It is
// killed instead of being answered if that is the fate: so every crash is aimed, and none depends on timing.

// setup tells a process where it works.
type setup struct {
	Side     string
	Database string // data source name
	Provider string // URL
	Broker   string // URL
}

// ready is the first thing that a process says.
type ready struct {
	URL string // where it takes orders
}

// question asks what is to happen to an order at a point.
type question struct {
	Number   int
	At       point
	Consumer string // whose delivery it is, if it is one
	Order    Order
	Message  *broker.Message // that was published, if that is the point
}

// answer says how to go on.
type answer struct {
	Number int
	Lose   bool // what is about to be done: it is pretended to have been done
}

// point is where an order is when a question is asked.
type point string

const (
	atRequest     point = "a request has arrived"
	atMissing     point = "the order was looked for, and is not there"
	atInsert      point = "the order is written and not committed"
	atPublish     point = "its message is about to be published"
	atPublished   point = "its message is published"
	atDelivery    point = "its message has arrived" // with the consumer's name
	atCharge      point = "the customer is charged"
	atTransaction point = "the points are added and not committed"
	atLetter      point = "the letter is sent"
	atAck         point = "its message is about to be acknowledged"
)

// meets are the points at which a fate comes true. Windows without one are made where orders are placed.
var meets = map[string]point{
	doubleClick:   atRequest,
	inTransaction: atInsert,
	beforePublish: atPublish,
	afterPublish:  atPublished,
	copied:        atPublished,
	raced:         atPublished,
	lostAck:       atAck,
	afterCharge:   atCharge,
	inHandler:     atTransaction,
	beforeAck:     atAck,
	afterLetter:   atLetter,
}

// waits are the points at which an order waits for what comes with it, or for what the process has in hand besides.
var waits = map[string]point{
	doubleClick:   atMissing,
	inTransaction: atRequest,
	raced:         atDelivery,
	inHandler:     atDelivery,
}
