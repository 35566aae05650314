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
Forgets a key that is done or expired, so that the next call with this key runs its work again. The effect can then
happen twice: undo the first one before you forget the key, if needed. The outcome is deleted without being archived;
look at it first with once keys get --body.

Forgetting a key does not change other systems:
- A system that still honours the idempotency key repeats its first answer and does nothing. Use another key if it has
  to act again.
- If the next attempt crashes, Lookup is asked about the same key and may still find the first effect.
- Steps below the key, such as pay/charge below pay, stay done. Forget each one separately.
- Messages are not delivered again.
` + decisionHelp + `
Example:
  once keys forget pay order-4711 --reason "charged to the wrong card, refunded as re_17, ticket 88"

` + exitHelp
}

// Run frees a key that is done.
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
		what += "\n  its outcome, which is deleted: " + outcomeText(shown.Outcome)
	}
	if r.Reason != "" {
		what += "\n  reason so far: " + string(show.Text(r.Reason))
	}
	if err := c.confirm(ctx, s, what+"\n  It becomes free although its work is done. The next call with this key runs the work AGAIN,\n"+
		"  and its effect can happen twice."); err != nil {
		return err
	}
	reason := fmt.Sprintf("forgotten by %s: %s", by, strings.TrimSpace(c.Reason))
	if !utf8.ValidString(reason) {
		return usage("--reason and --by must be UTF-8")
	}
	if err := store.Reopen(ctx, s.Store, r, reason); err != nil {
		return err
	}
	return decided(ctx, s, c.outputFlags, r, "forgotten", by, c.Reason)
}

// canForget returns an error that says what to do with a key that is not done.
func canForget(r once.Record) error {
	switch r.Status {
	case once.Done, once.Expired:
		return nil
	case once.Unknown, once.Parked:
		return moved("%s is %v: settle it with once keys release or once keys complete", describe(r.Key), r.Status)
	case once.Absent:
		return moved("%s is already free: the next call with this key runs the work", describe(r.Key))
	}
	return moved("%s is %v: only done and expired keys can be forgotten", describe(r.Key), r.Status)
}
