package main

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/store"
)

type keysForget struct {
	storeFlags
	outputFlags
	changeFlags
	keyArgs
}

// Help is the long text of once keys forget --help.
func (keysForget) Help() string {
	return `
For a key that is done, or expired, although its work has to run again. It runs nothing by itself: the next call with
this key runs the work, as if it had not been done. So its effect may happen twice: undo the first one, where that is
needed, before you forget it. The answer is gone, and comes into no archive: look at it with once keys get --body.

What stays as it was:
- The key travels as before. A system that still honours it as an idempotency key answers as it did the first time, and
  does nothing again. To have it act again, use another key.
- A Lookup of the operation is asked about the same key: if the next attempt crashes, and Lookup still finds the first
  effect, that is the outcome again.
- Steps below the key, like pay/charge below pay, are done still: each is forgotten by itself.
- A message is not delivered again.
` + decisionHelp + `
Example:
  once keys forget pay order-4711 --reason "charged to the wrong card, refunded as re_17, ticket 88"

` + exitHelp
}

// Run makes a key free that is done.
func (c *keysForget) Run(ctx context.Context) error {
	by, err := c.by()
	if err != nil {
		return err
	}
	s, r, err := c.read(ctx, c.storeFlags)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := canForget(r); err != nil {
		return err
	}
	what := fmt.Sprintf("  %s is %v, attempt %d, last changed %s", describe(r.Key), r.Status, r.Attempt, show.Ago(unchanged(r)))
	if r.Status == once.Done {
		shown, _ := opened(s, r)
		what += "\n  its outcome, which is lost: " + outcomeText(shown.Outcome)
	}
	if r.Reason != "" {
		what += "\n  reason so far: " + string(show.Text(r.Reason))
	}
	if err := c.confirm(ctx, s, what+"\n  It becomes free although its work was done: the next call with this key runs the work AGAIN,\n"+
		"  and its effect may happen twice."); err != nil {
		return err
	}
	reason := fmt.Sprintf("forgotten by %s: %s", by, strings.TrimSpace(c.Reason))
	if !utf8.ValidString(reason) {
		return usage("--reason and --by have to be UTF-8")
	}
	if err := store.Reopen(ctx, s.Store, r, reason); err != nil {
		return err
	}
	return decided(ctx, s, c.outputFlags, r, "forgotten", by, c.Reason)
}

// canForget says what else to do about a key that is not done.
func canForget(r once.Record) error {
	switch r.Status {
	case once.Done, once.Expired:
		return nil
	case once.Unknown, once.Parked:
		return moved("%s is %v: say what became of it with once keys release, or once keys complete", describe(r.Key), r.Status)
	case once.Absent:
		return moved("%s is free already: the next call with this key runs the work", describe(r.Key))
	}
	return moved("%s is %v: only done and expired keys can be forgotten", describe(r.Key), r.Status)
}
