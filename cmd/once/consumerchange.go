package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

// consumerChangeJSON is the JSON form of what was changed of a consumer.
type consumerChangeJSON struct {
	Name      string         `json:"name"`
	To        string         `json:"to,omitempty"`
	Keys      string         `json:"keys"`
	Consumers []consumerJSON `json:"consumers"`
	Seen      float64        `json:"seen_seconds"`
	Positions int            `json:"positions"`
	Waiting   int            `json:"waiting"`
	Parked    int            `json:"parked"`
	Discarded int            `json:"discarded"`
	DryRun    bool           `json:"dry_run"`
}

// editConsumer is what rename and retire share.
type editConsumer struct {
	storeFlags
	outputFlags
	changeFlags
	DryRun bool `help:"Show what would change, and change nothing."`
}

// run shows what do would change, asks, and calls do again.
func (c *editConsumer) run(ctx context.Context, to, deed string, describe func(inbox.ConsumerChange) string,
	do func(context.Context, inbox.Admin, inbox.Decision) (inbox.ConsumerChange, error)) error {

	by, err := c.by()
	if err != nil {
		return err
	}
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := target.Need[store.RegistryEditor](s.Target, target.AnEditor); err != nil {
		return err
	}
	of, err := target.Need[inbox.AdminStore](s.Target, target.AShelf)
	if err != nil {
		return err
	}
	admin, decision := inbox.Admin{Store: of}, inbox.Decision{By: by, Reason: strings.TrimSpace(c.Reason), DryRun: true}
	found, err := do(ctx, admin, decision)
	if err != nil {
		return consumerError(err, found)
	}
	if c.DryRun {
		note("On %s:\n%s", s, describe(found))
	} else {
		if err := c.confirm(ctx, s, describe(found)); err != nil {
			return err
		}
		decision.DryRun = false
		if found, err = do(ctx, admin, decision); err != nil {
			if found.Discarded.Changed > 0 {
				note("Discarded before that: %s.", show.Count(found.Discarded.Changed, "message", "messages"))
			}
			return consumerError(err, found)
		}
		audit(s, "a consumer was "+deed, by, decision.Reason, "consumer", found.Name, "to", to, "keys", found.Keys, "discarded", found.Discarded.Changed)
	}
	if c.json() {
		return printJSON(consumerChangeJSON{found.Name, to, found.Keys, consumersAsJSON(found.Rows), seconds(found.Seen), len(found.Positions),
			found.Waiting, found.Parked, found.Discarded.Changed, c.DryRun})
	}
	would := ""
	if c.DryRun {
		would = "would be "
	}
	fmt.Fprintf(os.Stdout, "%s: %s%s\n", show.Line(found.Name), would, deed)
	return nil
}

// consumerError gives an error of a change its exit code.
func consumerError(err error, found inbox.ConsumerChange) error {
	switch {
	case errors.Is(err, store.ErrNoConsumer):
		return moved("there is no consumer %s: see once consumers list", show.Line(found.Name))
	case errors.Is(err, store.ErrShelfInUse):
		return coded{exitNo, fmt.Sprintf("%v. They wait: %s, and are parked: %s. once parked replay has them handled if the consumer runs; --discard gives them up",
			err, upTo(found.Waiting), upTo(found.Parked))}
	case errors.Is(err, store.ErrConsumerState):
		return coded{exitNo, err.Error()}
	}
	return err
}

// upTo prints a count of messages on the shelf, which ends at 1,000.
func upTo(n int) string {
	if n == 1000 {
		return "1000 or more"
	}
	return fmt.Sprint(n)
}

// consumerLines describe the rows of a consumer.
func consumerLines(rows []store.Consumer) string {
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "\n    %s at %s, seen %s", show.Line(row.Name), show.Line(row.Source), show.Ago(row.Seen))
	}
	return b.String()
}

type consumersRename struct {
	editConsumer
	Old string `arg:"" complete:"consumer" help:"Name of the consumer."`
	New string `arg:"" help:"The name that it gets."`
}

// Validate is called by kong.
func (c *consumersRename) Validate() error {
	if c.New == "" || strings.ContainsAny(c.Old+c.New, "/@") {
		return fmt.Errorf("a name is empty, or has a slash or an @: name the consumer itself, and its rebuilds follow")
	}
	return c.changeFlags.Validate()
}

// Help is the long text of once consumers rename --help.
func (consumersRename) Help() string {
	return `
Then deploy the program with the new name, without RenamedFrom. Nothing that the consumer keeps is moved: the keys of its
messages, its positions and its parked messages stay under its first name, which once consumers list shows under KEYS.
So processes with the old name may go on meanwhile. They are listed under the old name again until they end. After that,
repeat the call.

A name that belongs to another consumer is refused. Rebuilds of the consumer are renamed with it.

Example:
  once consumers rename billing invoicing --reason "the service has a new name, ticket 88"

` + exitHelp
}

// Run renames a consumer.
func (c *consumersRename) Run(ctx context.Context) error {
	describe := func(found inbox.ConsumerChange) string {
		what := fmt.Sprintf("  %s becomes %s:%s\n  Its keys, %s and %s on the shelf stay under %s.", show.Line(c.Old), show.Line(c.New), consumerLines(found.Rows),
			show.Count(len(found.Positions), "position", "positions"), upTo(found.Waiting+found.Parked)+" open messages", show.Line(found.Keys))
		if len(found.Into) > 0 {
			what += "\n  The new name is registered, with the same keys. Both become one:" + consumerLines(found.Into)
		}
		if found.Seen < inbox.RetireSilence {
			what += "\n  It is at work. Processes with the old name go on, and list it again until they end."
		}
		return what
	}
	return c.run(ctx, c.New, "renamed", describe, func(ctx context.Context, admin inbox.Admin, by inbox.Decision) (inbox.ConsumerChange, error) {
		found, err := admin.Rename(ctx, c.Old, c.New, by)
		found.Name = c.Old
		return found, err
	})
}

type consumersRetire struct {
	editConsumer
	Name    string `arg:"" complete:"consumer" help:"Name of the consumer."`
	Discard bool   `help:"Discard its messages on the shelf first: those that wait for another attempt, and those that are parked."`
}

// Help is the long text of once consumers retire --help.
func (consumersRetire) Help() string {
	return `
Stop its processes first: a consumer that was at work in the last five minutes is refused. So is one with messages on the
shelf, unless --discard gives them up, and one of several names of a consumer.

Its name stays listed as retired, and a program that starts with it again gets an error, which says who retired it and how
to have it continue with its old keys. Its positions keep their offsets and end. Its keys expire as always. Another
consumer may now read from its source.

If the call is interrupted, repeat it.

Examples:
  once consumers retire mailing --reason "replaced by notifying, ticket 90" --dry-run
  once consumers retire mailing --reason "replaced by notifying, ticket 90" --discard

` + exitHelp
}

// Run retires a consumer.
func (c *consumersRetire) Run(ctx context.Context) error {
	describe := func(found inbox.ConsumerChange) string {
		what := fmt.Sprintf("  %s is retired, for good:%s", show.Line(c.Name), consumerLines(found.Rows))
		if n := len(found.Positions); n > 0 {
			what += "\n  Ended, and read on from only after somebody has set them: " + show.Count(n, "position", "positions") + "."
		}
		if n := found.Discarded.Changed; n > 0 {
			what += fmt.Sprintf("\n  DISCARDED, and not handled: %s (waiting: %s, parked: %s).", show.Count(n, "message", "messages"), upTo(found.Waiting), upTo(found.Parked))
		}
		return what
	}
	return c.run(ctx, "", "retired", describe, func(ctx context.Context, admin inbox.Admin, by inbox.Decision) (inbox.ConsumerChange, error) {
		found, err := admin.Retire(ctx, c.Name, c.Discard, by)
		found.Name = c.Name
		return found, err
	})
}
