package outbox

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

// Relay publishes the messages of an outbox. Store and Publisher are required;
// the zero value of all other fields is valid. A Relay is not changed by use,
// and may run several times concurrently, in any number of processes: relays
// divide the lanes of an outbox among themselves by leases.
type Relay struct {
	Store     store.Relayable
	Publisher broker.Publisher // the caller closes it; see [HandingOver]

	// Batch is how many messages are published together. Default: 500.
	Batch int

	// MaxBytes limits the total size of the bodies in memory. A larger message is
	// processed alone. Default: 16 MiB.
	MaxBytes int

	// Overtaking allows several messages of one ordering key in a batch. This is
	// much faster for keys with many messages, but breaks their order if the
	// broker refuses a message and accepts a later one.
	Overtaking bool

	// Then says what happens to the rows of published messages: store.Delete,
	// store.Keep or store.Archive.
	Then store.Ending

	// KeepFor is how long store.Keep keeps the rows of published messages.
	// Default: a week. A janitor.Janitor of the store deletes them after its
	// KeepPublished, 90 days by default, if that is shorter.
	KeepFor time.Duration

	Retry   Retry   // for messages that the broker refuses while it accepts others
	OnStuck OnStuck // what happens to later messages of an ordering key

	// Lease is how long a lane stays with a relay that has stopped responding. It is
	// renewed six times as often. At least a tenth of a second. Default: 8 seconds.
	// With a store that has [store.Presence], and a Lease above 4 seconds, other relays
	// have the lanes within 3 seconds if its process has ended.
	Lease time.Duration

	// PublishTime limits one call of the Publisher, and of the Store. A call of the
	// Publisher also ends when the leases of its messages could not be renewed.
	// Default: 10 seconds.
	PublishTime time.Duration

	// Poll is the longest interval between two reads of the table. A relay reads
	// as soon as it is notified of a message, and then at growing intervals.
	// Default: a second if the store reports messages put by any process
	// ([store.Ear]), else 200 ms. Delayed messages are looked for each second, or
	// after Poll if the store reports all messages and Poll is longer.
	Poll time.Duration

	// StopTime is how long work in progress may continue after the context of Run
	// ends. Default: 20 seconds.
	StopTime time.Duration

	Logger   *slog.Logger // for problems that no caller sees; default: slog.Default()
	Stats    *Stats       // counts messages by result; optional
	Observer Observer     // observes each call of the Publisher; optional
}

// Retry configures how often and when a failed message is retried.
type Retry struct {
	Attempts int           // after these the message is Stuck; default 10
	First    time.Duration // delay after the first failure, doubled each time, with jitter; default 1 second
	Limit    time.Duration // longest delay; default 5 minutes
}

// OnStuck says what happens to later messages with the ordering key of a Stuck
// message.
type OnStuck int

const (
	HoldOrder OnStuck = iota // they wait until a person decides
	Pass                     // they are published; order is kept among messages that are not Stuck
)

// maxChunk is how many messages are read at a time, in one snapshot.
const maxChunk = 10_000

// minLease is the shortest Lease.
const minLease = 100 * time.Millisecond

// withDefaults returns a copy with the defaults.
func (r *Relay) withDefaults() *Relay {
	set := *r
	set.Batch = cmp.Or(set.Batch, 500)
	set.MaxBytes = cmp.Or(set.MaxBytes, 16<<20)
	set.KeepFor = cmp.Or(set.KeepFor, 7*24*time.Hour)
	set.Retry.Attempts = cmp.Or(set.Retry.Attempts, 10)
	set.Retry.First = cmp.Or(set.Retry.First, time.Second)
	set.Retry.Limit = cmp.Or(set.Retry.Limit, max(5*time.Minute, set.Retry.First))
	set.Lease = cmp.Or(set.Lease, 8*time.Second)
	set.PublishTime = cmp.Or(set.PublishTime, 10*time.Second)
	set.StopTime = cmp.Or(set.StopTime, 20*time.Second)
	set.Logger = logs.Of(set.Logger)
	if set.Stats == nil {
		set.Stats = new(Stats)
	}
	return &set
}

// check returns an error if the settings are invalid.
func (r *Relay) check() error {
	switch {
	case r.Store == nil || r.Publisher == nil:
		return invalid("a Relay needs a Store and a Publisher")
	case r.Store.Options() == nil:
		return invalid("the Options of %T are nil: a wrapper forwards those of its store", r.Store)
	case r.Store.Options().Sealing.Validate() != nil:
		return r.Store.Options().Sealing.Validate()
	case r.Batch < 1 || r.Batch > maxChunk || r.MaxBytes < 1:
		return invalid("Batch %d or MaxBytes %d: a batch has 1 to %d messages, and at least one byte", r.Batch, r.MaxBytes, maxChunk)
	case r.Then < store.Delete || r.Then > store.Archive || r.OnStuck < HoldOrder || r.OnStuck > Pass:
		return invalid("Then is none of Delete, Keep and Archive, or OnStuck neither HoldOrder nor Pass")
	case r.Retry.Attempts < 1 || r.Retry.First < 0 || r.Retry.Limit < r.Retry.First:
		return invalid("Retry needs at least one attempt, and a Limit that is not below First")
	case r.PublishTime < 0 || r.StopTime < 0 || r.KeepFor < 0 || r.Poll < 0:
		return invalid("PublishTime, StopTime, KeepFor and Poll must not be negative")
	case r.Lease < minLease:
		return invalid("the Lease of %v is below %v, and could not be renewed in time: raise the Lease", r.Lease, minLease)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: outbox: %s", once.ErrInvalid, fmt.Sprintf(format, args...))
}
