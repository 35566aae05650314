package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	Find     keysFind     `cmd:"" help:"Find keys by a part of their ID."`
	Release  keysRelease  `cmd:"" help:"Free a key whose work did not happen and no longer can."`
	Complete keysComplete `cmd:"" help:"Complete a key whose work happened."`
	Forget   keysForget   `cmd:"" help:"Forget a done key, so that its work runs again."`
}

// Help is the long text of once keys --help.
func (keysCommand) Help() string {
	return `
A key is named by its operation, its ID and, if it has one, its scope:
  once keys get pay order-4711
  once keys get --scope tenant-7 pay/charge order-4711

The status of a key is running, unknown (its lease lapsed, or its work reported that the outcome is not known), parked (a person has to
decide), done, expired (done, but the outcome is forgotten) or absent. Settle unknown and parked keys with release or
complete. To run the work of a done key again, use forget.

` + exitHelp
}

// keyJSON is the JSON form of a key.
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
	Lapsed      *bool        `json:"lapsed,omitempty"` // of an unknown key; false: its attempt reported so
	Reason      string       `json:"reason,omitempty"`
	Fingerprint string       `json:"fingerprint,omitempty"`
	Outcome     *outcomeJSON `json:"outcome,omitempty"`
	Created     string       `json:"created"`
	Updated     string       `json:"updated"`

	// Of keys get and of lists of unknown and parked keys: the key that has put the message which this key is of.
	Cause *causeJSON `json:"cause,omitempty"`

	// Of keys get only: the messages that this key has put and the outbox still has, and the records that they led to.
	Messages []putJSON `json:"messages,omitempty"`
	LedTo    []keyJSON `json:"led_to,omitempty"`
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
	if r.Status == once.Unknown {
		lapsed := r.Lapsed()
		j.Lapsed = &lapsed
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
	Body bool `help:"Print only the body of the outcome. With JSON, include it in base64."`
}

// Help is the long text of once keys get --help.
func (keysGet) Help() string {
	return `
Examples:
  once keys get pay order-4711
  once keys get --scope tenant-7 pay/charge order-4711 -o json
  once keys get pay order-4711 --body | jq .

Also lists the messages of the key that are still in the outbox, and the records of consumers of this store for these
messages. Published messages are in the outbox only if the relay keeps them. The archive and the log-only outbox are
not searched.

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
			return moved("%s has no stored outcome: it is %v", describe(r.Key), r.Status)
		}
		return show.Body(os.Stdout, r.Outcome.Body)
	}
	found, notAll := findTraces(ctx, s, r)
	switch {
	case notAll != nil:
		note("The search for messages of the key and their effects did not finish: %v", notAll)
	case found.cut:
		note("There may be more. At most %d messages per state and %d keys are shown.", maxPut, maxPut)
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

// opened returns the record with its outcome decrypted. If that fails, it returns
// the stored outcome and the reason.
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

// read opens the store and returns the record of the key. A key without a record
// is an error.
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
			hint = "; if it has a scope, add --scope"
		}
		err = moved("%s is unknown to the store or was forgotten%s", describe(k), hint)
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
	why := r.Reason
	if r.Status == once.Running && r.LeaseLeft > 0 {
		t.Row("lease", "for another "+show.Span(r.LeaseLeft))
	}
	if r.Status == once.Unknown && r.LeaseLeft < 0 {
		t.Row("unknown", "since "+show.Span(-r.LeaseLeft)+map[bool]string{true: ", when the lease lapsed", false: ", as its attempt reported"}[r.Lapsed()])
		why = r.Why()
	}
	t.Row("attempt", fmt.Sprint(r.Attempt))
	t.Row("first claimed", show.Ago(r.Age))
	t.Row("last changed", show.Ago(unchanged(r)))
	if why != "" {
		t.Row("reason", show.Text(why))
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

// pageFlags select a page of a long list.
type pageFlags struct {
	Limit *int   `placeholder:"N" help:"Maximum number, up to 1000 (default 100; 20 for once keys list)."`
	After string `placeholder:"TOKEN" help:"Cursor printed by the previous page."`
	All   bool   `help:"Print all pages."`
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
		return fmt.Errorf("--limit is %d: use 1 to 1000, or --all", *f.Limit)
	}
	return nil
}

// keyFilter selects keys of any status.
type keyFilter struct {
	Operation chosen  `complete:"operation" placeholder:"NAME" help:"Only this operation."`
	Scope     *string `placeholder:"TEXT" help:"Only this scope; --scope= selects the empty scope."`
	OlderThan age     `placeholder:"TIME" help:"Last changed at least this long ago, for example 90s, 15m, 48h or 3d."`
	NewerThan age     `placeholder:"TIME" help:"Last changed less than this long ago."`

	ChangedFrom moment `placeholder:"WHEN" help:"Last changed at or after this time, such as 2026-11-22T14:03:00Z."`
	ChangedTo   moment `placeholder:"WHEN" help:"Last changed before this time."`
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

// check rejects filters that cannot match anything, because an empty list looks
// like an answer.
func (f *keyFilter) check() error {
	from, to := time.Time(f.ChangedFrom), time.Time(f.ChangedTo)
	switch {
	case !from.IsZero() && !to.IsZero() && !from.Before(to):
		return usage("--changed-to must be after --changed-from")
	case f.NewerThan != 0 && f.NewerThan <= f.OlderThan:
		return usage("--newer-than must be longer than --older-than")
	}
	return nil
}

type keysList struct {
	storeFlags
	outputFlags
	keyFilter
	pageFlags
	Status []string `enum:"running,unknown,parked,done,expired,absent" placeholder:"STATUS" help:"Only these statuses: running, unknown, parked, done, expired, absent."`
}

// Help is the long text of once keys list --help.
func (keysList) Help() string {
	return `
Lists the most recently changed keys, newest first: 20, or --limit. It scans the selected keys for up to 10 seconds and
reports if it could not scan all. Select a status or an operation to make it fast.

With --all or --after it lists all keys page by page in a stable order of the store, so that changes do not move keys
between pages. A page can be short or even empty; it is the last one only if it prints no cursor.

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
		return listKeys(ctx, c.storeFlags, c.outputFlags, c.keyFilter, c.pageFlags, of, false)
	}
	return c.last(ctx, of)
}

// last prints the most recently changed keys.
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
	if err := l.look(ctx, s.Target, what, func() { line.say("%s scanned", show.Count(l.seen, "key", "keys")) }); err != nil {
		return listsOpen(s, err)
	}
	line.end()
	if err := printKeys(c.outputFlags, keysTable(), l.found, once.Key{}); err != nil {
		return err
	}
	switch {
	case l.cut:
		note("Not all keys could be scanned. These are the latest of %d. Select fewer keys, or use --all.", l.seen)
	case len(l.found) == 0:
		empty(c.outputFlags, "key", c.narrows() || len(of) > 0)
	case l.seen > len(l.found) && !c.json():
		note("These are the latest %d of %d. See --limit and --all.", len(l.found), l.seen)
	}
	return nil
}

// listsOpen says what to do if a store has no list of all keys.
func listsOpen(s *session, err error) error {
	if s.Tables == nil && errors.Is(err, once.ErrInvalid) {
		return usage("this store lists only keys that are not done: add --status running,unknown,parked")
	}
	return err
}

// keysJSON is the JSON form of a page of keys.
type keysJSON struct {
	Keys []keyJSON `json:"keys"`
	Next string    `json:"next,omitempty"`
}

// listKeys prints keys in pages. open are those that wait for an answer.
func listKeys(ctx context.Context, f storeFlags, o outputFlags, filter keyFilter, p pageFlags, of []once.Status, open bool) (err error) {
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
	if open {
		table = openKeysTable()
	}
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
			return listsOpen(s, err)
		}
		found += len(recs)
		line.say("%s", show.Count(found, "key", "keys"))
		if open {
			err = printOpenKeys(ctx, s, o, table, recs, next)
		} else {
			err = printKeys(o, table, recs, next)
		}
		if err != nil {
			return err
		}
		switch {
		case next == once.Key{}:
			return nil
		case !p.All:
			more = true
			if !o.json() {
				note("There may be more. Next page: --after %s", token(next))
			}
			return nil
		}
		what.After = next
	}
}

func keysAsJSON(recs []once.Record, next once.Key) keysJSON {
	j := keysJSON{Keys: []keyJSON{}, Next: token(next)}
	for _, r := range recs {
		j.Keys = append(j.Keys, keyAsJSON(r))
	}
	return j
}

func printKeys(o outputFlags, table *show.Table, recs []once.Record, next once.Key) error {
	if o.json() {
		return printJSON(keysAsJSON(recs, next))
	}
	for _, r := range recs {
		table.Row(r.Status.String(), show.Ago(unchanged(r)), fmt.Sprint(r.Attempt), r.Key.Scope, r.Key.Operation,
			r.Key.ID, show.Short(r.Why()))
	}
	return table.Print(os.Stdout)
}

// openKeysTable is the table of keys that wait for an answer. It has what to search for at the other system: the key as
// it travels, and the business key that the work belongs to, if the ID is that of a message.
func openKeysTable() *show.Table {
	return newTable("STATUS", "CHANGED", "ATTEMPT", "SCOPE", "OPERATION", "ID", "TRAVELS AS", "CAUSED BY", "REASON")
}

// printOpenKeys prints unknown or parked keys.
func printOpenKeys(ctx context.Context, s *session, o outputFlags, table *show.Table, recs []once.Record, next once.Key) error {
	causes := causesOfKeys(ctx, s, recs)
	if o.json() {
		j := keysAsJSON(recs, next)
		for i := range j.Keys {
			j.Keys[i].Cause = causes[i]
		}
		return printJSON(j)
	}
	for i, r := range recs {
		table.Row(r.Status.String(), show.Ago(unchanged(r)), fmt.Sprint(r.Attempt), r.Key.Scope, r.Key.Operation,
			r.Key.ID, r.Key.String(), causes[i].text(), show.Short(r.Why()))
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
The change applies only to the record as shown. If the record has changed since, nothing is changed and the exit status
is 4.
`

// Help is the long text of once keys release --help.
func (keysRelease) Help() string {
	return `
Release a key only if you are certain that the work did not happen and that no request of it is still on its way. The
next call with this key runs the work.
` + decisionHelp + `
Example:
  once keys release pay order-4711 --reason "no charge at the provider, ticket 88"

` + exitHelp
}

// Run frees a key.
func (c *keysRelease) Run(ctx context.Context) error {
	return decide(ctx, c.storeFlags, c.outputFlags, c.changeFlags, c.keyArgs, nil)
}

// outcomeFlags are the outcome to record.
type outcomeFlags struct {
	Outcome     *string `xor:"outcome" placeholder:"TEXT" help:"Outcome that duplicates get."`
	OutcomeFile string  `xor:"outcome" placeholder:"FILE" type:"existingfile" help:"File with the outcome."`
	ContentType string  `placeholder:"TYPE" help:"Content type of the outcome (default application/json)."`
	Rejected    bool    `help:"Record the outcome as a rejection."`
}

// outcome returns the outcome to record. Without a body it is marked as omitted.
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
		return o, usage("--content-type requires --outcome or --outcome-file")
	default:
		o.Omitted = true
		return o, nil
	}
	o.ContentType = cmp.Or(o.ContentType, "application/json")
	if o.ContentType == "application/json" && !json.Valid(o.Body) {
		return o, usage("the outcome is not JSON, so duplicates could not decode it: for another type, add --content-type")
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
Without --outcome, duplicates get once.ErrOutcomeUnavailable: the work is done, but its answer is not known. An outcome
must have the form that the operation stores; by default that is its result as JSON.
`

// Help is the long text of once keys complete --help.
func (keysComplete) Help() string {
	return "\nCompletes a key whose work happened. The work is never run again.\n" + outcomeHelp + decisionHelp + `
Examples:
  once keys complete pay order-4711 --reason "charge ch_99 is at the provider"
  once keys complete pay order-4711 --outcome '{"charge":"ch_99"}' --reason "as the provider shows it"

` + exitHelp
}

// Run completes a key.
func (c *keysComplete) Run(ctx context.Context) error {
	out, err := c.outcome()
	if err != nil {
		return err
	}
	return decide(ctx, c.storeFlags, c.outputFlags, c.changeFlags, c.keyArgs, &out)
}

// decide settles an unknown or parked key. With an outcome the key becomes done,
// without one it becomes free.
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
		return moved("%s is %v: only unknown and parked keys can be settled by hand", describe(r.Key), r.Status)
	}
	deed, then := "released", "becomes free: the next call with this key runs the work."
	if out != nil {
		deed, then = "completed", "becomes done: "+outcomeText(*out)+"."
	}
	what := fmt.Sprintf("  %s is %v, attempt %d, last changed %s", describe(r.Key), r.Status, r.Attempt,
		show.Ago(unchanged(r)))
	if why := r.Why(); why != "" {
		what += "\n  reason so far: " + string(show.Text(why))
	}
	if err := c.confirm(ctx, s, what+"\n  It "+then); err != nil {
		return err
	}
	reason := fmt.Sprintf("%s by %s: %s", deed, by, strings.TrimSpace(c.Reason))
	if !utf8.ValidString(reason) {
		return usage("--reason and --by must be UTF-8")
	}
	if err := settle(ctx, s.Store, r, out, reason); err != nil {
		return err
	}
	return decided(ctx, s, o, r, deed, by, c.Reason)
}

// decided writes the audit record of a decision and prints its result.
func decided(ctx context.Context, s *session, o outputFlags, r once.Record, deed, by, reason string) error {
	audit(s, "a key was "+deed, by, reason, "key", r.Key, "attempt", r.Attempt, "was", r.Status.String())
	now, err := s.Store.Get(ctx, r.Key)
	if err != nil {
		return fmt.Errorf("the key was %s, but could not be read again: %w", deed, err)
	}
	now.Key = r.Key
	now.Reason = s.Store.Options().Sealing.OpenReason(now)
	now, _ = opened(s, now)
	if o.json() {
		return printJSON(keyAsJSON(now))
	}
	return printRecord(now, nil)
}

// settle changes the record unless it has changed since it was shown.
func settle(ctx context.Context, s once.Store, shown once.Record, out *once.Outcome, reason string) error {
	if out == nil {
		return once.MarkNotDone(ctx, s, shown, reason)
	}
	return once.MarkDone(ctx, s, shown, *out, reason)
}
