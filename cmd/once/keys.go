package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
)

type keysCommand struct {
	Get      keysGet      `cmd:"" help:"Show one key."`
	List     keysList     `cmd:"" help:"List keys."`
	Release  keysRelease  `cmd:"" help:"Say that it did not happen, and can no longer: the key is free again."`
	Complete keysComplete `cmd:"" help:"Say that it happened: the key is done."`
	Forget   keysForget   `cmd:"" help:"Have work that is done run again: the key is free, and its answer gone."`
}

// Help is the long text of once keys --help.
func (keysCommand) Help() string {
	return `
A key is named by its operation, its ID, and its scope if it has one, each on its own:
  once keys get pay order-4711
  once keys get --scope tenant-7 pay/charge order-4711

A key is running, unknown (its holder is gone, and whether it happened is not known), parked (it waits for a person),
done, expired (done, and its outcome forgotten), or absent. What became of unknown and parked ones is for a person to
decide. A done one is known until nobody repeats it any more: once keys forget undoes that for one key.

` + exitHelp
}

// keyJSON is a key as JSON.
type keyJSON struct {
	Scope       string       `json:"scope"`
	Operation   string       `json:"operation"`
	ID          string       `json:"id"`
	Key         string       `json:"key"`
	Status      string       `json:"status"`
	Attempt     int64        `json:"attempt"`
	AgeSeconds  float64      `json:"age_seconds"`
	Unchanged   float64      `json:"unchanged_seconds"`
	LeaseLeft   *float64     `json:"lease_left_seconds,omitempty"`
	Reason      string       `json:"reason,omitempty"`
	Fingerprint string       `json:"fingerprint,omitempty"`
	Outcome     *outcomeJSON `json:"outcome,omitempty"`
	Created     string       `json:"created"`
	Updated     string       `json:"updated"`

	// Of keys get only: the key that has put the message which this key is of, the messages that this key has put and the
	// outbox still has, and the records that they led to.
	Cause    *causeJSON `json:"cause,omitempty"`
	Messages []putJSON  `json:"messages,omitempty"`
	LedTo    []keyJSON  `json:"led_to,omitempty"`
}

type outcomeJSON struct {
	ContentType string `json:"content_type,omitempty"`
	Rejected    bool   `json:"rejected"`
	Omitted     bool   `json:"omitted"`
	Size        int    `json:"size"`
	Body        []byte `json:"body,omitempty"`
	Unopened    string `json:"unopened,omitempty"`
}

func keyAsJSON(r once.Record) keyJSON {
	j := keyJSON{Scope: r.Key.Scope, Operation: r.Key.Operation, ID: r.Key.ID, Key: r.Key.String(),
		Status: r.Status.String(), Attempt: r.Attempt, AgeSeconds: seconds(r.Age), Unchanged: seconds(unchanged(r)),
		Reason: r.Reason, Created: stamp(r.Created), Updated: stamp(r.Updated)}
	if r.LeaseLeft != 0 {
		left := seconds(r.LeaseLeft)
		j.LeaseLeft = &left
	}
	if len(r.Fingerprint) > 0 {
		j.Fingerprint = fmt.Sprintf("%x", r.Fingerprint)
	}
	return j
}

type keysGet struct {
	storeFlags
	outputFlags
	keyArgs
	Body bool `help:"Print the body of the outcome, and nothing else; as JSON, with the rest, in base64."`
}

// Help is the long text of once keys get --help.
func (keysGet) Help() string {
	return `
Examples:
  once keys get pay order-4711
  once keys get --scope tenant-7 pay/charge order-4711 -o json
  once keys get pay order-4711 --body | jq .

Below the key are the messages that it has put and that the outbox still has, and the keys that its messages led to, in
consumers of this store. What was published is in the outbox only if the relay keeps it. The archive, and messages that
are in PostgreSQL's log only, are not searched.

` + exitHelp
}

// Run prints a key.
func (c *keysGet) Run(ctx context.Context) error {
	s, r, err := c.read(ctx, c.storeFlags)
	if err != nil {
		return err
	}
	defer s.Close()
	r, unopened := opened(s, r)
	if c.Body && unopened != nil && !c.json() {
		return unopened
	}
	if c.Body && !c.json() {
		if r.Status != once.Done || r.Outcome.Omitted {
			return moved("%s has no outcome that is kept: it is %v", describe(r.Key), r.Status)
		}
		return show.Body(os.Stdout, r.Outcome.Body)
	}
	found, notAll := findTraces(ctx, s, r)
	switch {
	case notAll != nil:
		note("What the key has put, and what that led to, was not looked for to the end: %v", notAll)
	case found.cut:
		note("There may be more: at most %d messages in each state and %d keys are shown.", maxPut, maxPut)
	}
	if c.json() {
		j := keyAsJSON(r)
		j.Cause, j.Messages = found.cause, found.put
		for _, r := range found.ledTo {
			j.LedTo = append(j.LedTo, keyAsJSON(r))
		}
		if r.Status == once.Done {
			j.Outcome = &outcomeJSON{r.Outcome.ContentType, r.Outcome.Rejected, r.Outcome.Omitted, len(r.Outcome.Body), nil, ""}
			if unopened != nil {
				j.Outcome.Unopened = unopened.Error()
			}
			if c.Body {
				j.Outcome.Body = r.Outcome.Body
			}
		}
		return printJSON(j)
	}
	if unopened != nil {
		note("%v", unopened)
	}
	if err := printRecord(r, found.cause); err != nil {
		return err
	}
	return found.print()
}

// opened returns a record with its outcome as it was before it was sealed, or as it is stored, and why.
func opened(s *session, r once.Record) (once.Record, error) {
	if r.Status != once.Done {
		return r, nil
	}
	out, err := s.Store.Options().Sealing.Open(r)
	if err == nil {
		r.Outcome = out
	}
	return r, err
}

// read opens the store, and returns the record of the key, which is there.
func (a keyArgs) read(ctx context.Context, f storeFlags) (*session, once.Record, error) {
	k, err := a.key()
	if err != nil {
		return nil, once.Record{}, err
	}
	s, err := f.open(ctx)
	if err != nil {
		return nil, once.Record{}, err
	}
	r, err := s.Store.Get(ctx, k)
	if err == nil && r.Created.IsZero() {
		hint := ""
		if k.Scope == "" {
			hint = "; if it has a scope, say which by --scope"
		}
		err = moved("%s is not known, or forgotten%s", describe(k), hint)
	}
	if err != nil {
		s.Close()
		return nil, r, err
	}
	r.Key = k
	r.Reason = s.Store.Options().Sealing.OpenReason(r)
	return s, r, nil
}

func printRecord(r once.Record, cause *causeJSON) error {
	t := newTable()
	t.Row("operation", r.Key.Operation)
	t.Row("id", r.Key.ID)
	t.Row("scope", r.Key.Scope)
	t.Row("travels as", r.Key.String())
	if cause != nil {
		t.Row("caused by", cause.text())
	}
	t.Row("status", r.Status.String())
	if r.Status == once.Running && r.LeaseLeft > 0 {
		t.Row("lease", "for another "+show.Span(r.LeaseLeft))
	}
	if r.Status == once.Unknown && r.LeaseLeft < 0 {
		t.Row("unknown", "since "+show.Span(-r.LeaseLeft))
	}
	t.Row("attempt", fmt.Sprint(r.Attempt))
	t.Row("first claimed", show.Ago(r.Age))
	t.Row("last changed", show.Ago(unchanged(r)))
	if r.Reason != "" {
		t.Row("reason", show.Text(r.Reason))
	}
	if r.Status == once.Done {
		t.Row("outcome", show.Text(outcomeText(r.Outcome)))
	}
	return t.Print(os.Stdout)
}

func outcomeText(o once.Outcome) string {
	text := show.Bytes(int64(len(o.Body)))
	switch {
	case o.Omitted:
		text = "not kept"
	case o.ContentType != "":
		text += " of " + o.ContentType
	}
	if o.Rejected {
		text += ", a rejection"
	}
	return text
}

// pageFlags go through long lists.
type pageFlags struct {
	Limit *int   `placeholder:"N" help:"How many at most, up to 1000 (default 100; for once keys list 20)."`
	After string `placeholder:"TOKEN" help:"Cursor printed by the previous page."`
	All   bool   `help:"All pages, one after the other."`
}

func (f *pageFlags) limit(otherwise int) int {
	if f.Limit == nil {
		return otherwise
	}
	return *f.Limit
}

// Validate is called by kong.
func (f *pageFlags) Validate() error {
	if f.Limit != nil && (*f.Limit < 1 || *f.Limit > 1000) {
		return fmt.Errorf("--limit is %d: give 1 to 1000, or --all", *f.Limit)
	}
	return nil
}

// keyFilter selects keys, whatever their status.
type keyFilter struct {
	Operation chosen  `placeholder:"NAME" help:"Of this operation, exactly."`
	Scope     *string `placeholder:"TEXT" help:"Of this scope, exactly; --scope= is the empty one."`
	OlderThan age     `placeholder:"TIME" help:"Not changed for so long, for example 90s, 15m, 48h or 3d."`
	NewerThan age     `placeholder:"TIME" help:"Changed since."`

	ChangedFrom moment `placeholder:"WHEN" help:"Last changed then, or later: 2026-11-22T14:03:00Z, as after a failover."`
	ChangedTo   moment `placeholder:"WHEN" help:"Last changed before."`
}

func (f *keyFilter) selection(of []once.Status) selection {
	what := selection{RecordQuery: once.RecordQuery{Operation: string(f.Operation), Status: of, Unchanged: time.Duration(f.OlderThan)},
		newerThan: time.Duration(f.NewerThan), from: time.Time(f.ChangedFrom), to: time.Time(f.ChangedTo)}
	if f.Scope != nil {
		what.Scopes = []string{*f.Scope}
	}
	return what
}

func keysTable() *show.Table {
	return newTable("STATUS", "CHANGED", "ATTEMPT", "SCOPE", "OPERATION", "ID", "REASON")
}

func (f *keyFilter) narrows() bool { return *f != keyFilter{} }

// check refuses what would select nothing: an empty list is an answer.
func (f *keyFilter) check() error {
	from, to := time.Time(f.ChangedFrom), time.Time(f.ChangedTo)
	switch {
	case !from.IsZero() && !to.IsZero() && !from.Before(to):
		return usage("--changed-to has to be after --changed-from: nothing is between them")
	case f.NewerThan != 0 && f.NewerThan <= f.OlderThan:
		return usage("--newer-than has to be longer than --older-than: nothing is between them")
	}
	return nil
}

type keysList struct {
	storeFlags
	outputFlags
	keyFilter
	pageFlags
	Status []string `enum:"running,unknown,parked,done,expired,absent" placeholder:"STATUS" help:"In one of these: running, unknown, parked, done, expired, absent."`
}

// Help is the long text of once keys list --help.
func (keysList) Help() string {
	return `
It lists the keys that changed last, the newest first: 20 of them, or as many as --limit says. For that it looks at all
keys that you select, for 10 seconds at most, and says so if there are more. The status and the operation make it quick.

With --all or --after it lists all keys, a page after the other, in an order that only the store knows and that stays:
what changes meanwhile moves nothing from page to page. A page may be short, or empty, and have others after it: as long
as it names a place to go on.

Examples:
  once keys list
  once keys list --status unknown,parked
  once keys list --operation pay --older-than 1h --limit 20
  once keys list --status parked --all -o json | jq -r '.keys[].id'

` + exitHelp
}

var statuses = map[string]once.Status{"absent": once.Absent, "running": once.Running, "unknown": once.Unknown,
	"parked": once.Parked, "done": once.Done, "expired": once.Expired}

// Run prints the keys.
func (c *keysList) Run(ctx context.Context) error {
	var of []once.Status
	for _, name := range c.Status {
		of = append(of, statuses[name])
	}
	if c.All || c.After != "" {
		return listKeys(ctx, c.storeFlags, c.outputFlags, c.keyFilter, c.pageFlags, of)
	}
	return c.last(ctx, of)
}

// last prints the keys that changed last.
func (c *keysList) last(ctx context.Context, of []once.Status) error {
	if err := c.check(); err != nil {
		return err
	}
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	line := newProgress(c.outputFlags)
	defer line.end()
	l := latest{most: c.limit(20)}
	what := c.selection(of)
	what.Limit = 1000
	if err := l.look(ctx, s.Target, what, func() { line.say("%s looked at", show.Count(l.seen, "key", "keys")) }); err != nil {
		return err
	}
	line.end()
	if err := printKeys(c.outputFlags, keysTable(), l.found, once.Key{}); err != nil {
		return err
	}
	switch {
	case l.cut:
		note("There are more keys than could be looked at: these are the last of %d. Select fewer, or see --all.", l.seen)
	case len(l.found) == 0:
		empty(c.outputFlags, "key", c.narrows() || len(of) > 0)
	case l.seen > len(l.found) && !c.json():
		note("These are the last %d of %d: see --limit and --all.", len(l.found), l.seen)
	}
	return nil
}

// keysJSON is a page as JSON.
type keysJSON struct {
	Keys []keyJSON `json:"keys"`
	Next string    `json:"next,omitempty"`
}

func listKeys(ctx context.Context, f storeFlags, o outputFlags, filter keyFilter, p pageFlags, of []once.Status) (err error) {
	more := false // after what was looked at
	after, err := untoken(p.After)
	if err != nil {
		return err
	}
	if err := filter.check(); err != nil {
		return err
	}
	s, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	what := filter.selection(of)
	what.After, what.Limit = after, p.limit(100)
	table := keysTable()
	var line *progress
	if !show.IsScreen(os.Stdout) { // where the keys themselves show it
		line = newProgress(o)
	}
	defer line.end()
	found := 0
	defer func() {
		if err == nil && found == 0 && !more {
			empty(o, "key", filter.narrows() || len(of) > 0)
		}
	}()
	for {
		recs, next, err := page(ctx, s.Target, what)
		if err != nil {
			return err
		}
		found += len(recs)
		line.say("%s", show.Count(found, "key", "keys"))
		if err := printKeys(o, table, recs, next); err != nil {
			return err
		}
		switch {
		case next == once.Key{}:
			return nil
		case !p.All:
			more = true
			if !o.json() {
				note("There may be more: --after %s", token(next))
			}
			return nil
		}
		what.After = next
	}
}

func printKeys(o outputFlags, table *show.Table, recs []once.Record, next once.Key) error {
	if o.json() {
		j := keysJSON{Keys: []keyJSON{}, Next: token(next)}
		for _, r := range recs {
			j.Keys = append(j.Keys, keyAsJSON(r))
		}
		return printJSON(j)
	}
	for _, r := range recs {
		table.Row(r.Status.String(), show.Ago(unchanged(r)), fmt.Sprint(r.Attempt), r.Key.Scope, r.Key.Operation,
			r.Key.ID, show.Short(r.Reason))
	}
	return table.Print(os.Stdout)
}

type keysRelease struct {
	storeFlags
	outputFlags
	changeFlags
	keyArgs
}

const decisionHelp = `
The record that is shown is the one that is changed: if it moves on before that, nothing is changed, and the exit
status is 4.
`

// Help is the long text of once keys release --help.
func (keysRelease) Help() string {
	return `
Say this only if it is certain that the work did not happen, and that nothing of it is still on its way: the next call
with this key runs it.
` + decisionHelp + `
Example:
  once keys release pay order-4711 --reason "no charge at the provider, ticket 88"

` + exitHelp
}

// Run makes a key free.
func (c *keysRelease) Run(ctx context.Context) error {
	return decide(ctx, c.storeFlags, c.outputFlags, c.changeFlags, c.keyArgs, nil)
}

// outcomeFlags are the answer to give from now on.
type outcomeFlags struct {
	Outcome     *string `xor:"outcome" placeholder:"TEXT" help:"The answer that repeats get."`
	OutcomeFile string  `xor:"outcome" placeholder:"FILE" type:"existingfile" help:"A file that holds it."`
	ContentType string  `placeholder:"TYPE" help:"What it is (default application/json, which operations store unless they say otherwise)."`
	Rejected    bool    `help:"It was a business no, which repeats get as such."`
}

// outcome is the answer; without one it is said to be lost.
func (f *outcomeFlags) outcome() (once.Outcome, error) {
	o := once.Outcome{ContentType: f.ContentType, Rejected: f.Rejected}
	switch {
	case f.Outcome != nil:
		o.Body = []byte(*f.Outcome)
	case f.OutcomeFile != "":
		body, err := os.ReadFile(f.OutcomeFile)
		if err != nil {
			return o, usage("%v", err)
		}
		o.Body = body
	case f.ContentType != "":
		return o, usage("--content-type is of --outcome or --outcome-file: give one of them")
	default:
		o.Omitted = true
		return o, nil
	}
	o.ContentType = cmp.Or(o.ContentType, "application/json")
	if o.ContentType == "application/json" && !json.Valid(o.Body) {
		return o, usage("the outcome is not JSON: repeats could not read it. For another type, give --content-type")
	}
	return o, nil
}

type keysComplete struct {
	storeFlags
	outputFlags
	changeFlags
	keyArgs
	outcomeFlags
}

const outcomeHelp = `
Without --outcome, repeats hear that it was done and that its answer is not known (once.ErrOutcomeUnavailable). An
outcome has to be what the operation would have stored: with once.Operation's defaults, its result as JSON.
`

// Help is the long text of once keys complete --help.
func (keysComplete) Help() string {
	return "\nSay this if the work happened: it is never run again.\n" + outcomeHelp + decisionHelp + `
Examples:
  once keys complete pay order-4711 --reason "charge ch_99 is at the provider"
  once keys complete pay order-4711 --outcome '{"charge":"ch_99"}' --reason "as the provider shows it"

` + exitHelp
}

// Run makes a key done.
func (c *keysComplete) Run(ctx context.Context) error {
	out, err := c.outcome()
	if err != nil {
		return err
	}
	return decide(ctx, c.storeFlags, c.outputFlags, c.changeFlags, c.keyArgs, &out)
}

// decide settles an unknown or parked key: done with an outcome, or, without one, free.
func decide(ctx context.Context, f storeFlags, o outputFlags, c changeFlags, a keyArgs, out *once.Outcome) error {
	by, err := c.by()
	if err != nil {
		return err
	}
	s, r, err := a.read(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	if r.Status != once.Unknown && r.Status != once.Parked {
		return moved("%s is %v: only unknown and parked keys are for a person to decide", describe(r.Key), r.Status)
	}
	deed, then := "released", "becomes free: the next call with this key runs the work."
	if out != nil {
		deed, then = "completed", "becomes done: "+outcomeText(*out)+"."
	}
	what := fmt.Sprintf("  %s is %v, attempt %d, last changed %s", describe(r.Key), r.Status, r.Attempt,
		show.Ago(unchanged(r)))
	if r.Reason != "" {
		what += "\n  reason so far: " + string(show.Text(r.Reason))
	}
	if err := c.confirm(ctx, s, what+"\n  It "+then); err != nil {
		return err
	}
	reason := fmt.Sprintf("%s by %s: %s", deed, by, strings.TrimSpace(c.Reason))
	if !utf8.ValidString(reason) {
		return usage("--reason and --by have to be UTF-8")
	}
	if err := settle(ctx, s.Store, r, out, reason); err != nil {
		return err
	}
	return decided(ctx, s, o, r, deed, by, c.Reason)
}

// decided writes down what was decided about a record, and prints what became of it.
func decided(ctx context.Context, s *session, o outputFlags, r once.Record, deed, by, reason string) error {
	audit(s, "a key was "+deed, by, reason, "key", r.Key, "attempt", r.Attempt, "was", r.Status.String())
	now, err := s.Store.Get(ctx, r.Key)
	if err != nil {
		return fmt.Errorf("it is %s, but could not be read again: %w", deed, err)
	}
	now.Key = r.Key
	now.Reason = s.Store.Options().Sealing.OpenReason(now)
	now, _ = opened(s, now)
	if o.json() {
		return printJSON(keyAsJSON(now))
	}
	return printRecord(now, nil)
}

// settle changes the record as it was shown, or nothing.
func settle(ctx context.Context, s once.Store, shown once.Record, out *once.Outcome, reason string) error {
	if out == nil {
		return once.MarkNotDone(ctx, s, shown, reason)
	}
	return once.MarkDone(ctx, s, shown, *out, reason)
}
