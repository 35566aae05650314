package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
)

type outboxCommand struct {
	Status  outboxStatus  `cmd:"" help:"Show the backlog, its age, and the relays."`
	Peek    outboxPeek    `cmd:"" help:"List messages."`
	Groups  outboxGroups  `cmd:"" help:"Count stuck messages by why they failed."`
	Retry   outboxRetry   `cmd:"" help:"Publish stuck messages."`
	Park    outboxPark    `cmd:"" help:"Hold messages back until they are retried or discarded."`
	Discard outboxDiscard `cmd:"" help:"Discard stuck messages and archive them."`
}

// Help is the long text of once outbox --help.
func (outboxCommand) Help() string {
	return `
The state of a message is pending (waits for a relay), delayed (not yet due), held (waits for its next attempt, or for
an earlier message with its ordering key), stuck (needs a person) or published (kept for a while).

` + exitHelp
}

type outboxStatus struct {
	storeFlags
	outputFlags
}

// Help is the long text of once outbox status --help.
func (outboxStatus) Help() string {
	return `
The last failure is that of a message which failed while others got through. While nothing at all gets through, messages
are pending, and the log of the relays has the error.

Counts above 10,000 are estimates. Messages of the log-only outbox are not counted; the slot shows the size of their
backlog.

Example:
  once outbox status -o json`
}

type outboxJSON struct {
	Depth  []depthJSON `json:"depth"`
	Relays int         `json:"relays"`
	Failed *failedJSON `json:"last_failure,omitempty"`
	Lanes  []laneJSON  `json:"lanes"`
	Slot   *slotJSON   `json:"slot,omitempty"`
}

type depthJSON struct {
	State     string  `json:"state"`
	Count     int     `json:"count"`
	Estimated bool    `json:"estimated"`
	Oldest    float64 `json:"oldest_seconds"`
}

// failedJSON is the last error of a relay, and the message that it is about.
type failedJSON struct {
	At       string `json:"at"`
	Reason   string `json:"reason"`
	ID       string `json:"id"`
	Topic    string `json:"topic"`
	State    string `json:"state"`
	Seq      int64  `json:"seq"`
	Attempts int    `json:"attempts"`
}

type laneJSON struct {
	Lane  int     `json:"lane"`
	Relay string  `json:"relay,omitempty"`
	Left  float64 `json:"lease_left_seconds,omitempty"`
}

type slotJSON struct {
	Name     string `json:"name"`
	Active   bool   `json:"active"`
	Status   string `json:"status"`
	Retained int64  `json:"retained_bytes"`
	Lag      int64  `json:"lag_bytes"`
	Safe     int64  `json:"safe_bytes"`
}

// slotted is a store that reads its outbox from the PostgreSQL log.
type slotted interface {
	OutboxSlot(context.Context) (pgstore.Slot, error)
}

const countUpTo = 10_000

// Run prints the state of the outbox.
func (c *outboxStatus) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	messages, err := target.Need[store.Relayable](s.Target, target.AnOutbox)
	if err != nil {
		return err
	}
	depth, err := messages.OutboxDepth(ctx, countUpTo)
	if err != nil {
		return err
	}
	leases, err := s.Leases(ctx)
	if err != nil {
		return err
	}
	if leases.Damaged != nil {
		note("The leases of relays cannot be read, and begin anew: %v", leases.Damaged)
	}
	failed, found, err := outbox.Admin{Store: messages}.LastFailure(ctx)
	if err != nil {
		return err
	}
	var last *failedJSON
	if found {
		last = &failedJSON{stamp(failed.Changed), failed.Reason, failed.Message.ID, failed.Message.Topic, failed.State.String(), failed.Seq, failed.Attempts}
	}
	var slot *slotJSON
	if log, ok := s.Store.(slotted); ok && s.Tables != nil && s.Tables.Logged {
		found, err := log.OutboxSlot(ctx)
		if err != nil && !errors.Is(err, once.ErrInvalid) { // no relay has made it yet
			return err
		}
		if err == nil {
			slot = &slotJSON{found.Name, found.Active, found.Status, found.Retained, found.Lag, found.Safe}
		}
	}
	if c.json() {
		j := outboxAsJSON(depth, leases, slot)
		j.Failed = last
		return printJSON(j)
	}
	if err := printOutbox(depth, leases, slot); err != nil || !found {
		return err
	}
	if failed.State == store.Pending {
		_, err = fmt.Printf("\nThe last failure, %s, when nothing got through: %s\n",
			show.Ago(time.Since(failed.Changed)), show.Text(failed.Reason))
		return err
	}
	_, err = fmt.Printf("\nThe last failure, %s: message %s to %s, after %s: %s\n", show.Ago(time.Since(failed.Changed)),
		show.Quote(failed.Message.ID), show.Line(failed.Message.Topic), show.Count(failed.Attempts, "attempt", "attempts"), show.Text(failed.Reason))
	return err
}

func outboxAsJSON(depth []store.Depth, leases store.Leases, slot *slotJSON) outboxJSON {
	j := outboxJSON{Depth: []depthJSON{}, Relays: leases.Relays, Slot: slot}
	for _, d := range depth {
		j.Depth = append(j.Depth, depthJSON{d.State.String(), d.Count, d.Estimated, seconds(d.Oldest)})
	}
	for i, lane := range leases.Lanes {
		one := laneJSON{Lane: i}
		if lane.Relay != ([16]byte{}) {
			one.Relay, one.Left = fmt.Sprintf("%x", lane.Relay), seconds(lane.Left)
		}
		j.Lanes = append(j.Lanes, one)
	}
	return j
}

func printOutbox(depth []store.Depth, leases store.Leases, slot *slotJSON) error {
	table := newTable("STATE", "MESSAGES", "OLDEST")
	for _, d := range depth {
		count := fmt.Sprint(d.Count)
		if d.Estimated {
			count = "about " + count
		}
		table.Row(d.State.String(), count, show.Ago(d.Oldest))
	}
	if len(depth) == 0 {
		table.Row("all", "0", "")
	}
	if err := table.Print(os.Stdout); err != nil {
		return err
	}
	lanes := map[string][]string{} // by who has them
	var order []string
	for i, lane := range leases.Lanes {
		who := "nobody"
		switch {
		case lane.Relay == [16]byte{}:
		case lane.Left <= 0:
			who = fmt.Sprintf("%x (lapsed)", lane.Relay[:4])
		default:
			who = fmt.Sprintf("%x", lane.Relay[:4])
		}
		if lanes[who] == nil {
			order = append(order, who)
		}
		lanes[who] = append(lanes[who], fmt.Sprint(i))
	}
	fmt.Printf("\n%s alive.\n\n", show.Count(leases.Relays, "relay is", "relays are"))
	table = newTable("RELAY", "LANES")
	for _, who := range order {
		table.Row(who, strings.Join(lanes[who], " "))
	}
	if err := table.Print(os.Stdout); err != nil || slot == nil {
		return err
	}
	fmt.Println()
	table = newTable("SLOT", "STATUS", "READ", "BEHIND", "KEPT")
	table.Row(slot.Name, slot.Status, map[bool]string{true: "yes", false: "no"}[slot.Active], show.Bytes(slot.Lag),
		show.Bytes(slot.Retained))
	return table.Print(os.Stdout)
}

// messageFilter selects messages in the outbox.
type messageFilter struct {
	IDs         []string `name:"id" sep:"none" placeholder:"ID" help:"Only the message with this ID; repeatable."`
	Topic       chosen   `complete:"outgoing-topic" placeholder:"TOPIC" help:"Only messages to this topic."`
	OrderingKey chosen   `placeholder:"KEY" help:"Only messages with this ordering key."`
}

func (f messageFilter) query() store.OutgoingQuery {
	return store.OutgoingQuery{IDs: f.IDs, Topic: string(f.Topic), OrderingKey: string(f.OrderingKey)}
}

func (f messageFilter) none() bool { return len(f.IDs) == 0 && f.Topic == "" && f.OrderingKey == "" }

// messageSelection selects messages in the outbox, of one group of failures if that is
// given.
type messageSelection struct {
	messageFilter
	Alike groupID `placeholder:"ID" help:"Only messages of this group of failures, see once outbox groups."`
}

func (s messageSelection) none() bool { return s.messageFilter.none() && s.Alike == "" }

var outgoingStates = map[string]store.OutgoingState{"pending": store.Pending, "delayed": store.Delayed,
	"held":  store.Held,
	"stuck": store.Stuck, "published": store.Published}

type outboxPeek struct {
	storeFlags
	outputFlags
	messageSelection
	State string `enum:"pending,delayed,held,stuck,published" default:"stuck" help:"pending, delayed, held, stuck or published."`
	Limit int    `default:"100" placeholder:"N" help:"Maximum number, up to 1000 (default 100)."`
	After int64  `placeholder:"SEQ" help:"Start after this SEQ, the last one of the previous page."`
	Body  bool   `help:"Print headers and bodies as JSON. Bodies are in base64."`
}

// Help is the long text of once outbox peek --help.
func (outboxPeek) Help() string {
	return `
Examples:
  once outbox peek
  once outbox peek --state pending --topic order.paid --limit 5
  once outbox peek --id 0198c7de-0000-7000-8000-000000000001 --body -o json

` + exitHelp
}

// Validate is called by kong.
func (c *outboxPeek) Validate() error {
	if c.Limit < 1 || c.Limit > 1000 {
		return fmt.Errorf("--limit is %d: use 1 to 1000", c.Limit)
	}
	if c.Body && !c.json() {
		return fmt.Errorf("--body requires -o json")
	}
	return nil
}

// outgoingJSON is the JSON form of a message in the outbox.
type outgoingJSON struct {
	Seq         int64             `json:"seq"`
	ID          string            `json:"id"`
	Topic       string            `json:"topic"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Lane        int               `json:"lane"`
	State       string            `json:"state"`
	Attempts    int               `json:"attempts"`
	Reason      string            `json:"reason,omitempty"`
	Cause       *causeJSON        `json:"cause,omitempty"`
	Created     string            `json:"created"`
	Changed     string            `json:"changed,omitempty"`
	Header      map[string]string `json:"header,omitempty"`
	Body        []byte            `json:"body,omitempty"`
	Unopened    string            `json:"unopened,omitempty"`
}

// Run prints messages.
func (c *outboxPeek) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	q := c.query()
	q.State, q.Bodiless = outgoingStates[c.State], !c.Body
	messages, err := target.Need[store.Relayable](s.Target, target.AnOutbox)
	if err != nil {
		return err
	}
	atOnce := largestRead
	if c.Body { // which may be large
		atOnce = c.Limit
	}
	found, next, err := listed(c.Alike, c.Limit, atOnce, c.After, func(limit int, after int64) ([]store.Outgoing, error) {
		q.Limit, q.After = limit, after
		return outbox.Admin{Store: messages}.List(ctx, q)
	}, func(m store.Outgoing) (string, int64) { return m.Reason, m.Seq })
	if err != nil {
		return err
	}
	if c.json() {
		return printOutgoing(found, next)
	}
	table := newTable("SEQ", "PUT", "BY", "ATTEMPTS", "TOPIC", "ORDERING KEY", "ID", "REASON")
	for _, m := range found {
		table.Row(fmt.Sprint(m.Seq), show.Ago(time.Since(m.Created)), causeAsJSON(m.Cause).text(), fmt.Sprint(m.Attempts), m.Message.Topic,
			m.Message.OrderingKey, m.Message.ID, show.Short(m.Reason))
	}
	if len(found) == 0 {
		note("No message is %s%s.", c.State, map[bool]string{false: " among those selected"}[c.none() && c.After == 0])
	}
	if next != 0 {
		defer note("There may be more. Next page: --after %d", next)
	}
	return table.Print(os.Stdout)
}

func printOutgoing(found []store.Outgoing, next int64) error {
	all := []outgoingJSON{}
	for _, m := range found {
		all = append(all, outgoingJSON{m.Seq, m.Message.ID, m.Message.Topic, m.Message.OrderingKey, m.Lane, m.State.String(),
			m.Attempts, m.Reason, causeAsJSON(m.Cause), stamp(m.Created), stamp(m.Changed), m.Message.Header, m.Message.Body,
			unopened(m.Unopened)})
	}
	return printJSON(struct {
		Messages []outgoingJSON `json:"messages"`
		Next     int64          `json:"next,omitempty"`
	}{all, next})
}

// outboxChange has the flags and the code that retry, park and discard share.
type outboxChange struct {
	storeFlags
	outputFlags
	changeFlags
	messageSelection
	maxFlags
	All bool `help:"Select all messages."`

	waiting  bool // messages in any state in which they wait are selected
	unopened bool // only messages that cannot be read or opened are
	givesUp  bool // they are not published
}

// what says which messages are selected.
func (c *outboxChange) what(state store.OutgoingState) string {
	if c.waiting {
		return "waiting"
	}
	return state.String()
}

// whereIs says in which states the selected messages are, if they are named.
func (c *outboxChange) whereIs(ctx context.Context, messages store.Relayable) (text string, err error) {
	if len(c.IDs) == 0 {
		return "", nil
	}
	for _, state := range []store.OutgoingState{store.Pending, store.Delayed, store.Held, store.Stuck, store.Published} {
		q := c.query()
		q.State, q.Bodiless, q.Limit = state, true, 100
		found, err := messages.Outgoing(ctx, q)
		if err != nil {
			return "", err
		}
		for _, m := range found {
			text += fmt.Sprintf("; %s is %v", show.Quote(m.Message.ID), state)
		}
	}
	return text, nil
}

// Validate is called by kong.
func (c *outboxChange) Validate() error {
	switch {
	case c.none() && !c.All:
		return fmt.Errorf("select messages: --id, --topic, --ordering-key, --alike, or --all")
	case c.All && !c.none():
		return fmt.Errorf("--all cannot be combined with --id, --topic, --ordering-key and --alike")
	}
	if err := c.check(); err != nil {
		return err
	}
	return c.changeFlags.Validate()
}

// tallyJSON is the JSON form of the result of a bulk change.
type tallyJSON struct {
	Matched int  `json:"matched"`
	Changed int  `json:"changed"`
	Unknown int  `json:"unknown"`
	Moved   int  `json:"moved"`
	Taken   int  `json:"taken,omitempty"`   // a process is handling them
	Sending int  `json:"sending,omitempty"` // were given up, and a relay may have been sending them
	DryRun  bool `json:"dry_run"`
}

// proceeds says what giving up messages with ordering keys means for later ones.
func proceeds(ordered int) string {
	if ordered == 0 {
		return ""
	}
	return "\n  " + show.Count(ordered, "has an ordering key, whose later messages then proceed.",
		"have ordering keys, whose later messages then proceed.")
}

// sending returns how many of the messages that were given up a relay may have been
// sending: none if no relay is alive.
func (c *outboxChange) sending(ctx context.Context, s *session, tally outbox.Tally) (int, error) {
	if !c.givesUp || tally.Sending == 0 {
		return 0, nil
	}
	leases, err := s.Leases(ctx)
	if err != nil || leases.Relays == 0 {
		return 0, err
	}
	return tally.Sending, nil
}

// run counts the messages, asks for confirmation, and changes only the messages
// that it counted.
func (c *outboxChange) run(ctx context.Context, deed string, q store.OutgoingQuery,
	do func(outbox.Admin, store.OutgoingQuery, outbox.Decision) (outbox.Tally, error)) error {

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
	q.Limit = c.limit()
	messages, err := target.Need[store.Relayable](s.Target, target.AnOutbox)
	if err != nil {
		return err
	}
	those := newShown(newProgress(c.outputFlags), c.Alike)
	admin := outbox.Admin{Store: those.Outbox(messages)}
	decision := outbox.Decision{By: by, Reason: c.Reason, DryRun: true, Unopened: c.unopened}
	tally, err := do(admin, q, decision)
	those.line.end()
	if err != nil {
		return err
	}
	if tally.Matched == 0 {
		where, err := c.whereIs(ctx, messages)
		if err != nil {
			return err
		}
		if where == "" && !c.waiting {
			where = elsewhere(q.State, c.givesUp)
		}
		return moved("no selected message is %s%s", c.what(q.State), where)
	}
	sending, err := c.sending(ctx, s, tally) // relays that end before the change may have been
	if err != nil {
		return err
	}
	if !c.DryRun {
		what := fmt.Sprintf("  %s to be %s.", show.Count(tally.Matched,
			fmt.Sprintf("message that is %s is", c.what(q.State)), fmt.Sprintf("messages that are %s are", c.what(q.State))), deed) + those.failed()
		if c.givesUp {
			what += proceeds(tally.Ordered)
		}
		if sending > 0 {
			what += "\n  Relays are alive. What one is sending at that moment may still be published."
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
			audit(s, "messages of the outbox were "+deed, by, c.Reason, those.attrs(matched, tally.Changed)...)
		}
		if err != nil {
			return fmt.Errorf("after %s: %w", show.Count(tally.Changed, "message", "messages"), err)
		}
		tally.Matched = matched
		sending = min(sending, tally.Sending)
	}
	return finish(c.outputFlags, deed, tallyJSON{Matched: tally.Matched, Changed: tally.Changed, Moved: tally.Matched - tally.Changed,
		Sending: sending, DryRun: c.DryRun})
}

// elsewhere says where else a message may be if it is not in the given state.
func elsewhere(state store.OutgoingState, givesUp bool) string {
	if state == store.Stuck && !givesUp {
		return "; once outbox park makes pending, delayed and held messages stuck"
	}
	return "; select " + map[bool]string{true: "stuck, "}[givesUp] + "pending, delayed or held messages with --state"
}

// finish prints a tally. It returns an error if messages were not changed,
// because their outcome is unknown or because others changed them first.
func finish(o outputFlags, deed string, t tallyJSON) error {
	if o.json() {
		if err := printJSON(t); err != nil {
			return err
		}
	} else {
		if t.DryRun {
			deed = "would be " + deed
		}
		fmt.Printf("%d of %s: %s\n", t.Changed, show.Count(t.Matched, "message", "messages"), deed)
	}
	if t.Unknown > 0 {
		note("%d were not replayed because their outcome is unknown. If they certainly did not happen, add --not-done. "+
			"If they happened, first complete their keys, which once parked show prints, with once keys complete.", t.Unknown)
		return errNo
	}
	if t.Sending > 0 && !t.DryRun {
		note("%d were pending or held. A relay that was sending one at that moment may have published it.", t.Sending)
	}
	taken := ""
	if t.Taken > 0 {
		taken = fmt.Sprintf("%d are being handled, and are done soon or wait again", t.Taken)
	}
	if left := t.Matched - t.Changed - t.Taken; left > 0 {
		return moved("%d changed after they were counted and were left as they are%s", left, strings.TrimSuffix("; "+taken, "; "))
	}
	if taken != "" {
		return moved("%s", taken)
	}
	return nil
}

type outboxRetry struct{ outboxChange }

// Help is the long text of once outbox retry --help.
func (outboxRetry) Help() string {
	return `
The messages are published within seconds, with their IDs and with a full number of attempts.

Examples:
  once outbox retry --topic order.paid --reason "the topic exists now" --dry-run
  once outbox retry --all --reason "the broker takes large messages now"

` + exitHelp
}

// Run makes parked messages due again.
func (c *outboxRetry) Run(ctx context.Context) error {
	q := c.query()
	q.State = store.Stuck
	return c.run(ctx, "retried", q, func(d outbox.Admin, q store.OutgoingQuery, by outbox.Decision) (outbox.Tally, error) {
		return d.Replay(ctx, q, by)
	})
}

type outboxPark struct {
	outboxChange
	State string `enum:",pending,delayed,held" default:"" placeholder:"STATE" help:"pending, delayed or held. Default: any of these with --id, otherwise pending."`
}

// states are those in which messages are looked for.
func (c *outboxPark) states() []store.OutgoingState {
	switch {
	case c.State != "":
		return []store.OutgoingState{outgoingStates[c.State]}
	case len(c.IDs) > 0: // who names a message need not know where it is
		return []store.OutgoingState{store.Pending, store.Delayed, store.Held}
	}
	return []store.OutgoingState{store.Pending}
}

// Help is the long text of once outbox park --help.
func (outboxPark) Help() string {
	return `
With --id, the message is found in whatever state it waits. Without it, the default is pending messages. Messages that the
broker refused are in the state held. A message that a relay is sending at that moment may still be published.

Examples:
  once outbox park --id 0198c7de-0000-7000-8000-000000000001 --reason "wrong template, ticket 91"
  once outbox park --topic mail.welcome --reason "wrong template, ticket 91"
  once outbox park --topic mail.welcome --state held --reason "wrong template, ticket 91"

` + exitHelp
}

// Run parks messages.
func (c *outboxPark) Run(ctx context.Context) error {
	q, states := c.query(), c.states()
	q.State = states[0]
	if len(states) > 1 {
		c.waiting = true
	}
	return c.run(ctx, "parked", q, func(d outbox.Admin, q store.OutgoingQuery, by outbox.Decision) (all outbox.Tally, err error) {
		limit := q.Limit
		for _, q.State = range states {
			if q.Limit = limit - all.Matched; limit == 0 {
				q.Limit = 0
			} else if q.Limit == 0 {
				break
			}
			tally, err := d.Park(ctx, q, by)
			all.Matched, all.Changed = all.Matched+tally.Matched, all.Changed+tally.Changed
			if err != nil {
				return all, err
			}
		}
		return all, nil
	})
}

type outboxDiscard struct {
	outboxChange
	State      string `enum:"stuck,pending,delayed,held" default:"stuck" placeholder:"STATE" help:"stuck (default), pending, delayed or held."`
	Unreadable bool   `help:"Only messages that cannot be read or opened, which may have no ID or topic."`
}

// Help is the long text of once outbox discard --help.
func (outboxDiscard) Help() string {
	return `
Discarded messages are never published. They move to the archive table with the decision as the reason, or, if the store
has none, are logged. Later messages with their ordering keys proceed.

The default is stuck messages. A message in another state, which a relay is sending at that moment, may still be
published.

Examples:
  once outbox discard --id 0198c7de-0000-7000-8000-000000000001 --reason "a test order"
  once outbox discard --topic mail.welcome --state pending --reason "wrong template, ticket 91" --dry-run
  once outbox discard --unreadable --reason "ticket 92"

` + exitHelp
}

// Validate is called by kong.
func (c *outboxDiscard) Validate() error {
	if c.Unreadable && c.none() {
		c.All = true
	}
	return c.outboxChange.Validate()
}

// Run discards messages.
func (c *outboxDiscard) Run(ctx context.Context) error {
	q := c.query()
	q.State, c.unopened, c.givesUp = outgoingStates[c.State], c.Unreadable, true
	return c.run(ctx, "discarded", q, func(d outbox.Admin, q store.OutgoingQuery, by outbox.Decision) (outbox.Tally, error) {
		if q.State == store.Stuck {
			return d.Discard(ctx, q, by)
		}
		return d.DiscardWaiting(ctx, q, by)
	})
}
