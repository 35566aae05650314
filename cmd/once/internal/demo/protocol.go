package demo

import (
	"time"

	"github.com/effectively-once/once/broker"
)

// The demo and its processes exchange JSON lines over stdin and stdout. A
// process first gets its setup and answers with its address. Then it asks at
// each point at which the window of its order may begin, and waits for the
// answer. If the window is a crash, the process is killed instead of being
// answered. So every crash is aimed, and none depends on timing.

// setup configures a process.
type setup struct {
	Side     string
	Database string        // data source name
	Provider string        // URL
	Broker   string        // URL
	Keep     time.Duration // how long keys are kept; 0: the default
}

// ready is the first message of a process.
type ready struct {
	URL string // takes orders
}

// question asks what to do with an order at a point.
type question struct {
	Number   int
	At       point
	Consumer string // of the delivery, if it is one
	Order    Order
	Message  *broker.Message // the published message, at that point
}

// answer says how to continue.
type answer struct {
	Number int
	Lose   bool // pretend to do it
}

// point is the step of an order at which a question is asked.
type point string

const (
	atRequest     point = "a request has arrived"
	atMissing     point = "the order was looked for, and is not there"
	atInsert      point = "the order is written and not committed"
	atPublish     point = "its message is about to be published"
	atPublished   point = "its message is published"
	atDelivery    point = "its message has arrived" // with the name of the consumer
	atCharge      point = "the customer is charged"
	atTransaction point = "the points are added and not committed"
	atLetter      point = "the letter is sent"
	atAck         point = "its message is about to be acknowledged"
)

// meets are the points at which windows happen. Windows without a point happen
// where orders are placed.
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

// waits are the points at which an order waits for its counterpart, or for
// other work of the process.
var waits = map[string]point{
	doubleClick:   atMissing,
	inTransaction: atRequest,
	raced:         atDelivery,
	inHandler:     atDelivery,
}
