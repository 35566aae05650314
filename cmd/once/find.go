package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/store"
)

type keysFind struct {
	storeFlags
	outputFlags
	Text  string `arg:"" help:"A part of the ID, such as an order number."`
	Limit int    `default:"100" placeholder:"N" help:"Maximum number, up to 1000 (default 100)."`
}

// foundJSON is the JSON form of keys that were found. A program that reads it does not
// see notes.
type foundJSON struct {
	keysJSON
	More bool `json:"more"` // there may be others
}

// Help is the long text of once keys find --help.
func (keysFind) Help() string {
	return `
Lists the keys whose ID contains TEXT, in any operation and scope, the last change first. It reads the whole table of
keys, which takes half a second for a million of them. Stores without SQL cannot do that: use once keys get, or the
console.

Examples:
  once keys find order-4711
  once keys find order-4711 -o json | jq -r '.keys[].operation'

` + exitHelp
}

// Validate is called by kong.
func (c *keysFind) Validate() error {
	if c.Limit < 1 || c.Limit > 1000 {
		return fmt.Errorf("--limit is %d: use 1 to 1000", c.Limit)
	}
	if err := (once.Key{Operation: "any", ID: c.Text}).Validate(); err != nil {
		return fmt.Errorf("no ID contains %q: give a part of one", c.Text)
	}
	return nil
}

// Run prints the keys.
func (c *keysFind) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	finder, err := target.Need[store.IDFinder](s.Target, target.ASearch)
	if err != nil {
		return err
	}
	line := newProgress(c.outputFlags)
	defer line.end()
	line.say("searching")
	keys, err := finder.FindIDs(ctx, c.Text, c.Limit)
	if err != nil {
		return err
	}
	found := make([]once.Record, 0, len(keys))
	for _, k := range keys {
		r, err := s.Store.Get(ctx, k)
		if err != nil {
			return err
		}
		if r.Key = k; !r.Created.IsZero() { // or it was forgotten meanwhile
			r.Reason = s.Store.Options().Sealing.OpenReason(r)
			found = append(found, r)
		}
	}
	line.end()
	slices.SortStableFunc(found, func(a, b once.Record) int { return b.Updated.Compare(a.Updated) })
	more := len(keys) == c.Limit
	if c.json() {
		err = printJSON(foundJSON{keysAsJSON(found, once.Key{}), more})
	} else {
		err = printKeys(c.outputFlags, keysTable(), found, once.Key{})
	}
	if err != nil {
		return err
	}
	switch {
	case more:
		note("There may be more than these %d, in no order. Give a longer part of the ID, or raise --limit.", c.Limit)
	case len(found) == 0:
		empty(c.outputFlags, "key", true)
	}
	return nil
}
