package store

import (
	"context"
	"time"
)

// Registry records which consumer reads which source. Without it, a consumer
// cannot tell that its name is in use at another source, or that it was renamed,
// and parks messages that are older than its keys are kept.
type Registry interface {
	// Register records that a consumer is at work now. A consumer calls it when it
	// starts, and then regularly. Register returns what was known of the name.
	//
	//	the name is registered          Register
	//	nowhere                         registers c; before is zero
	//	at c.Source                     updates the time; before is that row
	//	at c.SharedWith, not c.Source   adds c.Source; before has the new Source and
	//	                                else the first row of the name
	//	elsewhere                       changes nothing; before is the first row, so
	//	                                its Source is not that of c
	//
	// Keys is written only when the name is new, and stays. If it is empty, it is the
	// Name. Sources are compared with [MatchSource]: what is written and returned has
	// the facts of both.
	Register(ctx context.Context, c Consumer) (before Consumer, err error)

	// Consumers returns all consumers by name, once for each source of a name.
	Consumers(ctx context.Context) ([]Consumer, error)
}

// Consumer is a name under which messages are consumed.
type Consumer struct {
	Name   string        // 1 to 255 bytes
	Source string        // the name of the source, perhaps with facts: see [SourceText]
	Keys   string        // the name in its keys: the Name that it was first registered with
	Seen   time.Duration // since it last registered; only when read

	SharedWith string // another source of the Name, with the same messages; only for Register
}
