package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

type parkedCommand struct {
	List    parkedList    `cmd:"" help:"List parked messages."`
	Groups  parkedGroups  `cmd:"" help:"Count parked messages by why they failed."`
	Show    parkedShow    `cmd:"" help:"Show a parked message with its history."`
	Replay  parkedReplay  `cmd:"" help:"Hand parked messages to their consumer again."`
	Discard parkedDiscard `cmd:"" help:"Discard parked messages."`
	Keys    parkedKeys    `cmd:"" help:"List parked keys. Settle them with once keys release or complete."`
}

// Help is the long text of once parked --help.
func (parkedCommand) Help() string {
	return `
A consumer parks a message that it cannot handle, together with the key of the message. Replaying or discarding a
message also settles its key.

` + exitHelp
}

// shelfFilter selects messages on the shelf.
type shelfFilter struct {
	Consumer    chosen   `complete:"shelf" placeholder:"NAME" help:"Only this consumer."`
	IDs         []string `name:"id" sep:"none" placeholder:"ID" help:"Only the message with this ID; repeatable."`
	Topic       chosen   `complete:"shelved-topic" placeholder:"TOPIC" help:"Only messages from this topic."`
	OrderingKey chosen   `placeholder:"KEY" help:"Only messages with this ordering key."`
	Queue       bool     `help:"What is in the queue of --consumer, whose messages come through the store."`
}

// AfterApply is called by kong.
func (f shelfFilter) AfterApply() error {
	if f.Queue && f.Consumer == "" {
		return fmt.Errorf("--queue needs --consumer")
	}
	return nil
}

func (f shelfFilter) query() store.ShelfQuery {
	if f.Queue {
		f.Consumer = chosen(store.QueueOf(string(f.Consumer)))
	}
	return store.ShelfQuery{Consumer: string(f.Consumer), NoQueued: f.Consumer == "", IDs: f.IDs, Topic: string(f.Topic),
		OrderingKey: string(f.OrderingKey)}
}

func (f shelfFilter) none() bool {
	return f.Consumer == "" && len(f.IDs) == 0 && f.Topic == "" && f.OrderingKey == ""
}

// shelfSelection selects messages on the shelf, of one group of failures if that is
// given.
type shelfSelection struct {
	shelfFilter
	Alike groupID `placeholder:"ID" help:"Only messages of this group of failures, see once parked groups."`
}

func (s shelfSelection) none() bool { return s.shelfFilter.none() && s.Alike == "" }

// shelvedJSON is the JSON form of a message on the shelf.
type shelvedJSON struct {
	Seq         int64             `json:"seq"`
	Consumer    string            `json:"consumer"`
	ID          string            `json:"id"`
	Topic       string            `json:"topic"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	State       string            `json:"state"`
	Attempts    int               `json:"attempts"`
	Reason      string            `json:"reason,omitempty"`
	History     string            `json:"history,omitempty"`
	Origin      string            `json:"origin,omitempty"`
	Key         string            `json:"key,omitempty"`
	Cause       *causeJSON        `json:"cause,omitempty"`
	Created     string            `json:"created"`
	Updated     string            `json:"updated"`
	Header      map[string]string `json:"header,omitempty"`
	Body        []byte            `json:"body,omitempty"`
	Unopened    string            `json:"unopened,omitempty"`
}

// unopened returns why a message could not be decrypted, or "".
func unopened(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func shelvedAsJSON(m store.Shelved, cause *causeJSON) shelvedJSON {
	return shelvedJSON{m.Seq, m.Consumer, m.Message.ID, m.Message.Topic, m.Message.OrderingKey, m.State.String(),
		m.Attempts,
		m.Reason, m.History, m.Origin, m.Key, cause, stamp(m.Created), stamp(m.Updated), m.Message.Header, m.Message.Body, unopened(m.Unopened)}
}

type parkedList struct {
	storeFlags
	outputFlags
	shelfSelection
	State string `enum:"parked,waiting,handled,discarded" default:"parked" help:"parked, waiting, handled or discarded."`
	Limit int    `default:"100" placeholder:"N" help:"Maximum number, up to 1000 (default 100)."`
	After int64  `placeholder:"SEQ" help:"Start after this SEQ, the last one of the previous page."`
}

// Help is the long text of once parked list --help.
func (parkedList) Help() string {
	return `
Waiting messages are retried automatically. Handled and discarded messages are kept for a while.

Examples:
  once parked list
  once parked list --consumer billing --limit 20 -o json

` + exitHelp
}

// Validate is called by kong.
func (c *parkedList) Validate() error {
	if c.Limit < 1 || c.Limit > 1000 {
		return fmt.Errorf("--limit is %d: use 1 to 1000", c.Limit)
	}
	return nil
}

var shelfStates = map[string]store.ShelfState{"waiting": store.Waiting, "parked": store.Parked,
	"handled":   store.Handled,
	"discarded": store.Discarded}

// Run prints messages.
func (c *parkedList) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	q := c.query()
	q.States, q.Bodiless = []store.ShelfState{shelfStates[c.State]}, true
	shelf, err := target.Need[inbox.AdminStore](s.Target, target.AShelf)
	if err != nil {
		return err
	}
	found, next, err := listed(c.Alike, c.Limit, largestRead, c.After, func(limit int, after int64) ([]store.Shelved, error) {
		q.Limit, q.After = limit, after
		return inbox.Admin{Store: shelf}.List(ctx, q)
	}, func(m store.Shelved) (string, int64) { return m.Reason, m.Seq })
	if err != nil {
		return err
	}
	causes := causesOf(ctx, s, found)
	if c.json() {
		all := []shelvedJSON{}
		for i, m := range found {
			all = append(all, shelvedAsJSON(m, causes[i]))
		}
		return printJSON(struct {
			Messages []shelvedJSON `json:"messages"`
			Next     int64         `json:"next,omitempty"`
		}{all, next})
	}
	table := newTable("SEQ", "CHANGED", "ATTEMPTS", "CONSUMER", "TOPIC", "ID", "CAUSED BY", "REASON")
	for i, m := range found {
		table.Row(fmt.Sprint(m.Seq), show.Ago(time.Since(m.Updated)), fmt.Sprint(m.Attempts), m.Consumer, m.Message.Topic,
			m.Message.ID, causes[i].text(), show.Short(m.Reason))
	}
	if len(found) == 0 {
		note("No message is %s%s.", c.State, map[bool]string{false: " among those selected"}[c.none() && c.After == 0])
	}
	if next != 0 {
		defer note("There may be more. Next page: --after %d", next)
	}
	return table.Print(os.Stdout)
}

type parkedShow struct {
	storeFlags
	outputFlags
	Consumer chosen `arg:"" complete:"shelf" help:"Name of the consumer."`
	ID       string `arg:"" name:"id" help:"ID of the message."`
	Body     bool   `help:"Print only the body. JSON output always includes it in base64."`
}

// Help is the long text of once parked show --help.
func (parkedShow) Help() string {
	return `
Examples:
  once parked show billing order-4711-paid
  once parked show billing order-4711-paid --body | jq .

` + exitHelp
}

// Run prints a message.
func (c *parkedShow) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	shelf, err := target.Need[inbox.AdminStore](s.Target, target.AShelf)
	if err != nil {
		return err
	}
	found, err := inbox.Admin{Store: shelf}.List(ctx, store.ShelfQuery{Consumer: string(c.Consumer), IDs: []string{c.ID},
		Limit: 1})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return moved("%s has no message %s on the shelf", show.Line(string(c.Consumer)), show.Line(c.ID))
	}
	m := found[0]
	switch {
	case c.json():
		return printJSON(shelvedAsJSON(m, causesOf(ctx, s, found)[0]))
	case c.Body && m.Unopened != nil:
		return m.Unopened
	case c.Body:
		return show.Body(os.Stdout, m.Message.Body)
	}
	return printShelved(m, causesOf(ctx, s, found)[0])
}

func printShelved(m store.Shelved, cause *causeJSON) error {
	t := newTable()
	t.Row("consumer", m.Consumer)
	t.Row("message", m.Message.ID)
	t.Row("key", show.Text(keyOf(m)))
	t.Row("caused by", cause.text())
	t.Row("topic", m.Message.Topic)
	t.Row("ordering key", m.Message.OrderingKey)
	t.Row("state", m.State.String())
	t.Row("attempts", fmt.Sprint(m.Attempts))
	t.Row("put aside", show.Ago(time.Since(m.Created)))
	t.Row("last changed", show.Ago(time.Since(m.Updated)))
	t.Row("reason", show.Text(m.Reason))
	t.Row("came from", m.Origin)
	if m.Unopened != nil {
		t.Row("unreadable", m.Unopened.Error())
	}
	t.Row("body", show.Bytes(int64(len(m.Message.Body))))
	for _, name := range slices.Sorted(maps.Keys(m.Message.Header)) {
		t.Row("header "+show.Line(name), m.Message.Header[name])
	}
	if m.History != "" {
		t.Row("history", show.Text(m.History))
	}
	return t.Print(os.Stdout)
}

// keyOf returns the operation and the ID of the key of a message. A message that
// was parked because its key is invalid has none.
func keyOf(m store.Shelved) string {
	if m.Key == "" {
		return ""
	}
	return show.Line(m.Consumer) + " " + show.Quote(m.Key)
}

// shelfChange has the flags and the code that replay and discard share.
type shelfChange struct {
	storeFlags
	outputFlags
	changeFlags
	shelfSelection
	maxFlags

	state    string // of the messages, in words; default: parked
	unopened bool   // only messages that cannot be read or opened are selected
	givesUp  bool   // they are not handled
}

func (c *shelfChange) run(ctx context.Context, deed string, decision inbox.Decision,
	do func(inbox.Admin, store.ShelfQuery, inbox.Decision) (inbox.Tally, error)) error {

	by, err := c.by()
	if err != nil {
		return err
	}
	var o *target.Options
	if c.givesUp { // what waits is logged, message by message
		o = logged()
	}
	s, err := c.openWith(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close()
	q := c.query()
	q.Limit = c.limit()
	shelf, err := target.Need[inbox.AdminStore](s.Target, target.AShelf)
	if err != nil {
		return err
	}
	those := newShown(newProgress(c.outputFlags), c.Alike)
	admin := inbox.Admin{Store: those.Shelf(shelf)}
	decision.By, decision.Reason, decision.DryRun, decision.Unopened = by, c.Reason, true, c.unopened
	state := cmp.Or(c.state, "parked")
	tally, err := do(admin, q, decision)
	those.line.end()
	if err != nil {
		return err
	}
	if tally.Matched == 0 {
		return moved("no selected message is %s", state)
	}
	if !c.DryRun && tally.Changed > 0 {
		what := fmt.Sprintf("  %d of %s to be %s.", tally.Changed,
			show.Count(tally.Matched, state+" message is", state+" messages are"), deed) + those.failed()
		if c.givesUp {
			what += proceeds(tally.Ordered)
		}
		if err := c.confirm(ctx, s, what); err != nil {
			return err
		}
		matched := tally.Matched
		those.begin(matched)
		decision.DryRun = false
		tally, err = do(admin, q, decision)
		those.line.end()
		if tally.Changed > 0 {
			audit(s, state+" messages were "+deed, by, c.Reason, those.attrs(matched, tally.Changed)...)
		}
		if err != nil {
			return fmt.Errorf("after %s: %w", show.Count(tally.Changed, "message", "messages"), err)
		}
		tally.Moved += matched - tally.Matched
		tally.Matched = matched
	}
	return finish(c.outputFlags, deed, tallyJSON{Matched: tally.Matched, Changed: tally.Changed, Unknown: tally.Unknown,
		Moved: tally.Moved, Taken: tally.Taken, DryRun: c.DryRun})
}

// Limits of the rate, so that the time of the last message can be computed.
const slowest, fastest = 0.001, 1e6

type parkedReplay struct {
	shelfChange
	All     bool    `help:"Select all messages."`
	Rate    float64 `placeholder:"N" help:"Messages per second; default: all at once."`
	NotDone bool    `help:"Include messages with an unknown outcome. Give it only if they did not happen and no longer can."`
}

// Validate is called by kong.
func (c *parkedReplay) Validate() error {
	switch {
	case c.none() && !c.All:
		return fmt.Errorf("select messages: --consumer, --id, --topic, --ordering-key, --alike, or --all")
	case c.Rate != 0 && !(c.Rate >= slowest && c.Rate <= fastest):
		return fmt.Errorf("--rate is %v: use %v to %v per second, or omit it", c.Rate, slowest, fastest)
	}
	if err := c.check(); err != nil {
		return err
	}
	return c.changeFlags.Validate()
}

// Help is the long text of once parked replay --help.
func (parkedReplay) Help() string {
	return `
Replayed messages are handled within seconds, in order, with their IDs and with a full number of attempts. Steps that
are done are skipped.

A message with an unknown outcome is not replayed, because it may have happened. Look at the other system. If it
happened, complete the key and then replay: the message is marked as handled without running. If it did not happen, add
--not-done.

Examples:
  once parked replay --consumer billing --reason "fixed in release 1.42" --dry-run
  once parked replay --consumer billing --rate 5 --reason "fixed in release 1.42"
  once keys complete billing order-4711 --outcome '{"charge":"ch_99"}' --reason "ch_99 at the provider"
  once parked replay --consumer billing --id order-4711-paid --reason "ch_99 at the provider"

` + exitHelp
}

// Run replays messages.
func (c *parkedReplay) Run(ctx context.Context) error {
	by := inbox.Decision{PerSecond: c.Rate, NotDone: c.NotDone}
	return c.run(ctx, "replayed", by, func(d inbox.Admin, q store.ShelfQuery, by inbox.Decision) (inbox.Tally, error) {
		return d.Replay(ctx, q, by)
	})
}

type parkedDiscard struct {
	shelfChange
	State      string `enum:"parked,waiting" default:"parked" placeholder:"STATE" help:"parked (default) or waiting."`
	Unreadable bool   `help:"Only messages that cannot be read or opened, which may have no ID."`
}

// Validate is called by kong.
func (c *parkedDiscard) Validate() error {
	if c.Consumer == "" && len(c.IDs) == 0 && !c.Unreadable {
		return fmt.Errorf("select messages: --consumer, or --id")
	}
	if err := c.check(); err != nil {
		return err
	}
	return c.changeFlags.Validate()
}

// Help is the long text of once parked discard --help.
func (parkedDiscard) Help() string {
	return `
Discarded messages stay listed for a while. Copies of them that arrive are duplicates, and later messages with their
ordering keys proceed.

With --state waiting, messages are discarded that wait for another attempt or, with --queue, in the queue of a consumer
whose messages come through the store. One that a process is handling is left as it is.

Examples:
  once parked discard --consumer billing --id order-4711-paid --reason "a test order"
  once parked discard --consumer billing --state waiting --reason "test orders" --dry-run
  once parked discard --unreadable --reason "ticket 92"

` + exitHelp
}

// Run discards messages.
func (c *parkedDiscard) Run(ctx context.Context) error {
	c.state, c.unopened, c.givesUp = c.State, c.Unreadable, true
	return c.run(ctx, "discarded", inbox.Decision{}, func(d inbox.Admin, q store.ShelfQuery, by inbox.Decision) (inbox.Tally, error) {
		if c.State == "waiting" {
			return d.DiscardWaiting(ctx, q, by)
		}
		return d.Discard(ctx, q, by)
	})
}

type parkedKeys struct {
	storeFlags
	outputFlags
	keyFilter
	pageFlags
}

// Help is the long text of once parked keys --help.
func (parkedKeys) Help() string {
	return `
The list includes keys of parked messages. Settle those with once parked replay or discard.

Example:
  once parked keys --operation pay

` + exitHelp
}

// Run prints the parked keys.
func (c *parkedKeys) Run(ctx context.Context) error {
	return listKeys(ctx, c.storeFlags, c.outputFlags, c.keyFilter, c.pageFlags, []once.Status{once.Parked}, true)
}
