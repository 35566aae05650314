package turn

import "time"

// Request is one line of JSON to the process of the peers. With a DSN it opens
// all peers on that database instead of the previous one; with InMemory it
// opens those without a database; with a Peer it runs a turn; with none of
// these it closes the peers.
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

// Scenarios with peers.
const (
	Guarded      = "guarded"
	TwoPhase     = "two-phase"
	HTTP         = "http" // in memory
	Consume      = "consume"
	ConsumeBatch = "consume in batches"
	ConsumeLog   = "consume a log" // 64 messages per transaction, one statement at a time
	Put          = "put"           // one message, in the transaction that it announces
	Relay        = "relay"         // publish a backlog
	EndToEnd     = "end to end"    // put and publish
)

// Backlog returns the number of messages that a relay publishes, given the
// length of an ordinary turn.
func Backlog(length time.Duration) int { return int(length.Milliseconds()) * 2000 }
