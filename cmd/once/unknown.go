package main

import (
	"context"

	"github.com/effectively-once/once"
)

type unknownCommand struct {
	List   unknownList   `cmd:"" help:"List unknown keys."`
	Ask    unknownAsk    `cmd:"" help:"Ask the URL of an operation for the outcome of unknown keys."`
	Decide unknownDecide `cmd:"" help:"Settle an unknown key."`
}

// Help is the long text of once unknown --help.
func (unknownCommand) Help() string {
	return `
The outcome of a unit of work is unknown if its holder crashed or lost its connection before it recorded one, so that
its lease lapsed, or if the work itself reported an error that does not say whether it happened. The reason tells which:
in JSON it is lapsed. A program that declares the operation asks the other system with Lookup, at the next call or in package reconcile. This command
cannot call Lookup. It asks operations that have a URL (see once unknown ask --help). For all others, look at the other
system and settle the key here.

` + exitHelp
}

type unknownList struct {
	storeFlags
	outputFlags
	keyFilter
	pageFlags
}

// Help is the long text of once unknown list --help.
func (unknownList) Help() string {
	return `
TRAVELS AS is what the work sent to the other system as its idempotency key: search for it there. CAUSED BY is the key
of the work that put the message, if the ID is that of a message.

Examples:
  once unknown list
  once unknown list --operation pay/charge --older-than 1h -o json

` + exitHelp
}

// Run prints the unknown keys.
func (c *unknownList) Run(ctx context.Context) error {
	return listKeys(ctx, c.storeFlags, c.outputFlags, c.keyFilter, c.pageFlags, []once.Status{once.Unknown}, true)
}

type unknownDecide struct {
	storeFlags
	outputFlags
	changeFlags
	keyArgs
	outcomeFlags
	Answer string `arg:"" enum:"happened,not-happened" help:"happened or not-happened."`
}

// Help is the long text of once unknown decide --help.
func (unknownDecide) Help() string {
	return `
happened completes the key, not-happened frees it. Choose not-happened only if no request is still on its way: it would
take effect in addition to the next attempt.
` + outcomeHelp + decisionHelp + `
Examples:
  once unknown decide pay/charge order-4711 not-happened --reason "no charge at the provider after 30 minutes"
  once unknown decide pay/charge order-4711 happened --outcome '{"charge":"ch_99"}' --reason "as the provider shows it"

` + exitHelp
}

// Run settles an unknown key.
func (c *unknownDecide) Run(ctx context.Context) error {
	if c.Answer == "happened" {
		out, err := c.outcome()
		if err != nil {
			return err
		}
		return decide(ctx, c.storeFlags, c.outputFlags, c.changeFlags, c.keyArgs, &out)
	}
	if c.outcomeFlags != (outcomeFlags{}) {
		return usage("work that did not happen has no outcome: omit --outcome, --outcome-file, --content-type and --rejected")
	}
	return decide(ctx, c.storeFlags, c.outputFlags, c.changeFlags, c.keyArgs, nil)
}
