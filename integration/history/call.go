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
	transact      // claim and settle in a transaction
	extend
	settle
	get

	// A transact with firm set is two of these: see event.inTwo.
	claimFirmly
	conclude
)

func (v verb) String() string {
	return [...]string{"claim", "transact", "extend", "settle", "get", "claim firmly", "conclude"}[v]
}

// call is one call of a store on one key. It is an input of the model.
type call struct {
	verb  verb
	how   string            // the method, for display
	req   once.ClaimRequest // of claim and transact
	fence once.Fence        // of extend and settle
	lease time.Duration
	ends  ending // of settle and transact
	// undone is set for a transaction that was rolled back: what it read counts,
	// and what it wrote does not.
	undone bool
	// inSteps is set for SQLite, which claims in one statement and reads in the
	// next, so that other calls may come between.
	inSteps bool
	// blur is how far the process of the call may be apart from the clock of the
	// store, if it has learned that. It is 0 if the store's clock decides.
	blur time.Duration
	// firm is set for a transact that writes its claim before it calls its body.
	// entry is the call of the body.
	firm  bool
	entry entry
	// compares is set for a store that still has an outcome that has expired, and
	// compares it with that of a repeated settlement.
	compares bool

	client          int
	called, settled int64 // as numbered by the clock; settled is [never] if the call may still take effect
}

// entry is the call of a transaction's body. It is zero if there was none.
type entry struct {
	at, on int64       // as numbered by the clock, one after the other
	rec    once.Record // that the body got
}

// never is the end of a call that may take effect at any time.
const never = math.MaxInt64 / 4

// ending is a settlement without its fence. The zero ending is none.
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
type result int

const (
	answered result = iota // with a record, or without an error
	refused                // ErrLeaseLost
	failed                 // without an effect: not part of the history
	unknown                // it may have had an effect
)

func (f result) String() string {
	return [...]string{"answered", "refused", "failed", "unknown"}[f]
}

// reply is the reply to a call. It is an output of the model.
type reply struct {
	result result
	rec    once.Record // of claim, transact and get
	err    error       // for display
}

// inFlight reports whether a claim met another transaction on its key.
func (r reply) inFlight() bool {
	return r.rec.Status == once.Running && r.rec.LeaseLeft == 0 && r.rec.Owner == [16]byte{}
}

func (c call) String() string {
	text := c.how
	switch c.verb {
	case claim, transact, claimFirmly:
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
	if c.req.Speculative {
		text += ", speculative"
	}
	if c.firm {
		text += fmt.Sprintf(", firm, entered %d", c.entry.at)
	}
	return text
}

func (r reply) String() string {
	if r.result != answered {
		return fmt.Sprintf("%v (%v)", r.result, r.err)
	}
	if r.rec.Attempt == 0 && r.rec.Status == once.Absent {
		return "ok"
	}
	text := fmt.Sprintf("%v attempt %d owner %x left %v outcome %q", r.rec.Status, r.rec.Attempt, r.rec.Owner[:3],
		r.rec.LeaseLeft, r.rec.Outcome.Body)
	if r.rec.Reason != "" {
		text += ": " + r.rec.Reason
	}
	return text
}
