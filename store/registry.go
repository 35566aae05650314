package store

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
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
	//
	// If a damaged row may be that of c, Register changes nothing and returns an error
	// that wraps once.ErrCorrupt: a new row would have other Keys, and what the
	// consumer has handled would be handled again. If only the time of the row cannot
	// be read, it is written anew, and before.Seen is 0.
	Register(ctx context.Context, c Consumer) (before Consumer, err error)

	// Consumers returns all consumers by name, once for each source of a name. A
	// damaged row has Damaged set, and keeps no other from being read.
	Consumers(ctx context.Context) ([]Consumer, error)
}

// Consumer is a name under which messages are consumed.
type Consumer struct {
	Name   string        // 1 to 255 bytes
	Source string        // the name of the source, perhaps with facts: see [SourceText]
	Keys   string        // the name in its keys: the Name that it was first registered with
	Seen   time.Duration // since it last registered; only when read

	SharedWith string // another source of the Name, with the same messages; only for Register

	// Damaged is why the row cannot be used, when read. It wraps once.ErrCorrupt. Name,
	// Source and Keys are empty if they cannot be read, and can be relied on if not.
	// If all are empty, it may stand for several rows. The consumer of a damaged row is
	// registered: never take it for one that is not.
	Damaged error
}

// IsLegible reports whether Name, Source and Keys can be relied on: the row is not
// damaged, or only in its time.
func (c Consumer) IsLegible() bool {
	return c.Damaged == nil || c.Name != "" && c.Source != "" && c.Keys != ""
}

// DamagedConsumer returns the error for Damaged of a [Consumer].
func DamagedConsumer(name string, why error) error {
	return fmt.Errorf("%w: the row of consumer %q in the registry is damaged: %w. Repair it; its key_name, or Keys, is the first name that "+
		"the consumer had. Remove it only if the consumer is gone for good: without it, what is published to its topic is not kept for it, "+
		"and a consumer that was renamed handles everything again", once.ErrCorrupt, name, why)
}
