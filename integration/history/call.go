package history

import (
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/effectively-once/once"
)

type verb int

const (
	claim    verb = iota
	transact      // claim and settle, in a transaction
	extend
	settle
	get
)

func (v verb) String() string {
	return [...]string{"claim", "transact", "extend", "settle", "get"}[v]
}

// call is one call of a store on one key. It is an input of the model.
type call struct {
	verb  verb
	how   string            // which method, for a reader
	req   once.ClaimRequest // of claim and transact
	fence once.Fence        // of extend and settle
	lease time.Duration
	ends  ending // of settle and transact
	// undone: a transaction that claimed or settled and rolled back; what it saw counts, what it wrote does not.
	undone bool
	// inSteps: SQLite claims in one statement and looks in the next, so that others come between.
	inSteps bool

	client          int
	called, settled int64 // in microseconds since 1970; settled is [never] if it may still come
}

// never is the end of a call that may take effect at any later time.
const never = math.MaxInt64 / 4

// ending is a settlement without its hold; the zero ending: none.
type ending struct {
	status               once.Status
	outcome              string
	keepOutcome, keepKey time.Duration
}

func (e ending) none() bool { return e == ending{} }

func (e ending) settlement(fence once.Fence) once.Settlement {
	set := once.Settlement{Fence: fence, Status: e.status, KeepOutcome: e.keepOutcome, KeepKey: e.keepKey}
	if e.status == once.Done {
		set.Outcome = once.Outcome{Body: []byte(e.outcome), ContentType: "text/plain", Sum: crc32.ChecksumIEEE([]byte(e.outcome))}
	}
	return set
}

// result is how a call ended.
type fate int

const (
	answered fate = iota // with a record, or with nil
	refused              // ErrLeaseLost
	failed               // and it had no effect: not a part of the history
	unknown              // whether it had an effect is not known
)

func (f fate) String() string {
	return [...]string{"answered", "refused", "failed", "unknown"}[f]
}

// reply is what came back from a call. It is an output of the model.
type reply struct {
	fate fate
	rec  once.Record // of claim, transact and get
	err  error       // for a reader
}

// inFlight is how a claim is answered that meets another transaction on its key, and does not know what that will do.
func (r reply) inFlight() bool {
	return r.rec.Status == once.Running && r.rec.LeaseLeft == 0 && r.rec.Owner == [16]byte{}
}

func (c call) String() string {
	text := c.how
	switch c.verb {
	case claim, transact:
		text += fmt.Sprintf(" owner %x over %d lease %v", c.req.Owner[:3], c.req.Attempt, c.req.Lease)
	case extend:
		text += fmt.Sprintf(" owner %x attempt %d by %v", c.fence.Owner[:3], c.fence.Attempt, c.lease)
	case settle:
		text += fmt.Sprintf(" owner %x attempt %d", c.fence.Owner[:3], c.fence.Attempt)
	}
	if !c.ends.none() {
		text += fmt.Sprintf(" as %v %q kept %v, %v", c.ends.status, c.ends.outcome, c.ends.keepOutcome, c.ends.keepKey)
	}
	if c.undone {
		text += " and roll back"
	}
	return text
}

func (r reply) String() string {
	if r.fate != answered {
		return fmt.Sprintf("%v (%v)", r.fate, r.err)
	}
	if r.rec.Attempt == 0 && r.rec.Status == once.Absent {
		return "ok"
	}
	return fmt.Sprintf("%v attempt %d owner %x left %v outcome %q", r.rec.Status, r.rec.Attempt, r.rec.Owner[:3],
		r.rec.LeaseLeft, r.rec.Outcome.Body)
}
