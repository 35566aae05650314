package main

import (
	"context"

	"github.com/effectively-once/once"
)

type unknownCommand struct {
	List   unknownList   `cmd:"" help:"List units of work that may have happened."`
	Ask    unknownAsk    `cmd:"" help:"Ask the URLs of their operations what became of them."`
	Decide unknownDecide `cmd:"" help:"Say whether one happened."`
}

// Help is the long text of once unknown --help.
func (unknownCommand) Help() string {
	return `
A unit of work is unknown when its holder crashed, or was cut off, before it could say what became of it. The program
that declares the operation asks the other system by itself, with its Lookup: at the next call, or in package
reconcile. This command has no Lookup of yours: it asks where an operation has a URL for that, see once unknown ask --help,
and otherwise you look at the other system, and say here what you saw.

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
Examples:
  once unknown list
  once unknown list --operation pay/charge --older-than 1h -o json

` + exitHelp
}

// Run prints the unknown keys.
func (c *unknownList) Run(ctx context.Context) error {
	return listKeys(ctx, c.storeFlags, c.outputFlags, c.keyFilter, c.pageFlags, []once.Status{once.Unknown})
}

type unknownDecide struct {
	storeFlags
	outputFlags
	changeFlags
	keyArgs
	outcomeFlags
	Answer string `arg:"" enum:"happened,not-happened" help:"happened, or not-happened."`
}

// Help is the long text of once unknown decide --help.
func (unknownDecide) Help() string {
	return `
happened makes the key done, not-happened makes it free. Say not-happened only if the work can no longer happen either:
a request that is still on its way would come on top of the next attempt.
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
		return usage("what did not happen has no outcome: leave --outcome and its like out")
	}
	return decide(ctx, c.storeFlags, c.outputFlags, c.changeFlags, c.keyArgs, nil)
}
