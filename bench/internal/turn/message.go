package turn

import "time"

// Request is one line of JSON to the process of the peers. With a DSN it asks to open all peers on that database, in
// place of the one before; with InMemory, those that need none; with a Peer, for a turn; with neither, to close them.
type Request struct {
	DSN      string `json:",omitempty"`
	InMemory bool   `json:",omitempty"`

	Peer    string        `json:",omitempty"`
	Workers int           `json:",omitempty"`
	Length  time.Duration `json:",omitempty"`
}

// Reply is the line that answers a Request.
type Reply struct {
	Peers []Peer `json:",omitempty"` // after opening
	Tally Tally
	Error string `json:",omitempty"`
}

// Peer is another library's way to do the work of a scenario.
type Peer struct {
	Name     string // with its version
	Scenario string
}

// The scenarios that peers take part in.
const (
	Guarded      = "guarded"
	TwoPhase     = "two-phase"
	HTTP         = "http" // in memory
	Consume      = "consume"
	ConsumeBatch = "consume in batches"
	ConsumeLog   = "consume a log" // 64 messages in a transaction, statement by statement
	Put          = "put"           // a message, in the transaction that it announces
	Relay        = "relay"         // publish a backlog
	EndToEnd     = "end to end"    // put, and publish
)

// Backlog is how many messages a relay publishes in a turn that takes so long elsewhere.
func Backlog(length time.Duration) int { return int(length.Milliseconds()) * 2000 }
