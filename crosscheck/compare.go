package crosscheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Kind is what was found out about a key. The kinds are in the order of how
// urgent they are.
type Kind int

const (
	HappenedTwice Kind = iota // the report has it more than once
	RejectedHere              // it happened there, and its answer here is a rejection
	NotHere                   // it happened there, and the store does not know the key or it is free: the next call repeats it
	OpenHere                  // it happened there, and here it is unknown, parked or running
	NotThere                  // it is done here, and the report lacks it or has it with another status
	OpenNotThere              // it is unknown or parked here, and the report lacks it or has it with another status
	Differs                   // it is done on both sides, with different amounts or currencies
	NotComparable             // it is done on both sides, but the amount here cannot be read
	Undecided                 // it is running, or at the edge of the time that the report covers: nothing contradicts it yet
	Agrees
	kinds
)

var kindNames = [...]string{"happened_twice", "rejected_here", "not_here", "open_here", "not_there", "open_not_there",
	"differs", "not_comparable", "undecided", "agrees"}

// String returns the name of the kind, which does not change.
func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return kindNames[k]
}

var meanings = [...]string{
	HappenedTwice: "the report has it more than once",
	RejectedHere:  "the report has it, and its answer here is a rejection",
	NotHere:       "the report has it, and here it is not known or free",
	OpenHere:      "the report has it, and here it is unknown, parked or running",
	NotThere:      "it is done here, and by the report it did not happen",
	OpenNotThere:  "it is unknown or parked here, and by the report it did not happen",
	Differs:       "it is done on both sides, with another amount",
	NotComparable: "it is done on both sides, and the amounts cannot be compared",
	Undecided:     "it is running, or at an edge of the time of the report",
	Agrees:        "",
}

// Meaning says for people what the kind means.
func (k Kind) Meaning() string {
	if k < 0 || k >= kinds {
		return ""
	}
	return meanings[k]
}

// advice says what to do about a kind, before a command or a page says how.
var advice = map[Kind]string{
	HappenedTwice: "Compare the lines. If the effect happened twice, undo one there.",
	RejectedHere:  "Callers were told that it was rejected. Undo it there, or tell them.",
	NotHere:       "The next call does it again: stop callers, or make them ask there first. A wrong column, operation or scope looks the same.",
	OpenHere:      "They happened: complete them.",
	NotThere:      "Look there. If it did not happen and still has to, run it again at the next call.",
	OpenNotThere:  "If it did not happen and no longer can, free it.",
	Differs:       "Look at the outcome, and at the line of the report.",
	NotComparable: "Look at the outcome, and at the line of the report.",
}

// Advice says what to do about findings of the kind, or nothing if it does not
// disagree.
func (k Kind) Advice() string { return advice[k] }

// Kinds returns all kinds in the order of how urgent they are.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// Disagrees reports whether somebody has to look at what was found.
func (k Kind) Disagrees() bool { return k < Undecided }

// Decision is a decision about a record that a report supports.
type Decision int

const (
	None        Decision = iota
	MarkDone             // it happened: [once.MarkDone]
	MarkNotDone          // it did not happen: [once.MarkNotDone]. See [Comparison.MayFree]
)

// Finding is what was found out about one key.
type Finding struct {
	Kind   Kind
	Key    once.Key    // without Operation and ID if the report has keys as they travel, and the store does not know this one
	Travel string      // the key as it travels
	Record once.Record // zero if the store does not know the key

	Lines  []int  // of the report: those that happened, or all if none did; empty: it lacks the key
	Status string // of the first of these lines
	Line   []byte // the first of these lines, as a JSON object

	Theirs, Ours string // Differs: the amounts, with their currencies if these are compared
	Why          string // more about it, if there is more

	// Supports is the decision about an Unknown or Parked Record that the report
	// supports. A line with another status supports none, because it may be pending.
	Supports Decision
}

// Summary counts what was found.
type Summary struct {
	Counts   [kinds]int
	Others   int  // lines about keys of other operations or scopes, which are not compared
	OnlyOpen bool // the store lists only open records: it is not known what is done here and missing there
	Known    int  // keys of the report that the store knows
	Foreign  int  // keys that happened by the report and that the store does not know, or that are free

	// Damaged counts what was not compared because its record cannot be read: lines of
	// the report, and records that the store could not list. One record may be both.
	// Damage is the error of the first.
	Damaged int
	Damage  error
}

func (s *Summary) damaged(err error) {
	if s.Damaged++; s.Damage == nil {
		s.Damage = err
	}
}

// Disagrees reports whether any finding needs somebody to look.
func (s *Summary) Disagrees() bool {
	for k, n := range s.Counts {
		if n > 0 && Kind(k).Disagrees() {
			return true
		}
	}
	return false
}

// Comparison compares a report with the records of one operation.
type Comparison struct {
	Store    once.Store
	Report   *Report
	AnyScope bool // compare the keys of all scopes; only if the report has keys as they travel

	// Since and Until are the time that the report covers. A record outside of it is
	// not missing there, and neither is one at its edge. Default: all time.
	Since, Until time.Time

	// Margin is how far the time of an effect in the report may be from the time of
	// its record: the difference of the clocks, and how long an attempt can still
	// arrive after it has ended.
	Margin time.Duration

	// Amount and Currency are where the outcome has them, as JSON pointers such as
	// /amount. Default: they are not compared. If Decimals is 2, the outcome has
	// 1250 where the report has 12.50.
	Amount, Currency string
	Decimals         int

	AtOnce   int             // reads of records at the same time; default 8
	Progress func(lines int) // is called now and then with the number of keys that were compared
}

func (c *Comparison) validate() error {
	f := c.Report.format
	for _, both := range []struct {
		pointer, column, what string
	}{{c.Amount, f.Amount, "amount"}, {c.Currency, f.Currency, "currency"}} {
		if (both.pointer == "") != (both.column == "") {
			return fmt.Errorf("%w: to compare the %s, say where it is in the report and in the outcome", once.ErrInvalid, both.what)
		}
		if both.pointer != "" {
			if err := checkPointer(both.pointer); err != nil {
				return fmt.Errorf("%w: %w", once.ErrInvalid, err)
			}
		}
	}
	switch {
	case !c.Since.IsZero() && !c.Until.IsZero() && !c.Since.Before(c.Until):
		return fmt.Errorf("%w: the time that the report covers ends before it begins", once.ErrInvalid)
	case c.Margin < 0:
		return fmt.Errorf("%w: Margin is negative", once.ErrInvalid)
	case c.AnyScope && f.Key == "":
		return fmt.Errorf("%w: IDs need the scope of their keys", once.ErrInvalid)
	}
	return nil
}

// MayFree returns an error that says why records that the report lacks must not
// be freed, although [Finding.Supports] allows it for each of them. It needs the
// summary of the whole comparison.
func (c *Comparison) MayFree(s Summary) error {
	switch {
	case c.Since.IsZero() || c.Until.IsZero():
		return errors.New("the time that the report covers is not given")
	case s.Known == 0:
		return errors.New("no line of the report is about a key that the store knows: perhaps the column, the operation or the store is another one")
	case s.Foreign > 0:
		return fmt.Errorf("the report has keys that the store does not know, %d: each may be one that seems to be missing, under another ID", s.Foreign)
	case c.Report.Cut:
		return errors.New("the last line of the report has no end, so the report may have been cut off: if it is whole, end that line")
	case c.Report.Skipped > 0:
		return fmt.Errorf("the report has lines without an ID, %d: each may be one that seems to be missing", c.Report.Skipped)
	}
	return nil
}

// Run compares, and calls found for each finding, in one goroutine: first those
// that happened twice, then what the report lacks, then the others in the order
// of the report. It does not call it for Agrees and Undecided. If found returns
// an error, Run ends with it.
func (c *Comparison) Run(ctx context.Context, found func(Finding) error) (Summary, error) {
	r := &comparing{Comparison: *c, found: found}
	if err := r.validate(); err != nil {
		return r.Summary, err
	}
	r.AtOnce = cmp.Or(r.AtOnce, 8)
	r.lister, _ = once.As[once.Lister](r.Store)
	r.many, _ = once.As[store.ManyGetter](r.Store)
	if r.lister == nil && r.Report.format.Key != "" {
		return r.Summary, fmt.Errorf("%w: the store does not list records, so it finds none by a key as it travels", once.ErrInvalid)
	}
	for i := range r.Report.index { // of an earlier Run
		r.Report.index[i].settled = false
		r.twice = r.twice || r.Report.happenedTwice(i)
	}
	if r.twice {
		if err := r.lines(ctx); err != nil {
			return r.Summary, err
		}
	}
	if err := r.list(ctx); err != nil {
		return r.Summary, err
	}
	r.twice = false
	err := r.lines(ctx)
	return r.Summary, err
}

// comparing is a Comparison in progress.
type comparing struct {
	Comparison
	Summary
	lister once.Lister
	many   store.ManyGetter // nil: the store has none
	found  func(Finding) error
	twice  bool // look at the lines that happened twice, not at the others
	done   int
}

func (r *comparing) tell(f Finding) error {
	r.Counts[f.Kind]++
	if len(f.Lines) > 0 && f.Record.Attempt > 0 {
		r.Known++
	}
	if !f.Kind.Disagrees() {
		return nil
	}
	if f.Key.ID != "" {
		f.Travel = f.Key.String()
	}
	return r.found(f)
}

var (
	open    = []once.Status{once.Running, once.Unknown, once.Parked}
	counted = append([]once.Status{once.Done, once.Expired}, open...)
)

// list reads the records of the operation. It tells what the report lacks, and
// marks what it has.
func (r *comparing) list(ctx context.Context) error {
	if r.lister == nil {
		r.OnlyOpen = true
		return nil
	}
	q := once.RecordQuery{Operation: r.Report.of.Operation, Status: counted, Limit: 1000}
	if !r.AnyScope {
		q.Scopes = []string{r.Report.of.Scope}
	}
	for {
		page, err := r.lister.List(ctx, q)
		if errors.Is(err, once.ErrInvalid) && !r.OnlyOpen && q.After == (once.Key{}) {
			r.OnlyOpen, q.Status = true, open
			continue
		}
		if err != nil {
			return err
		}
		for _, damage := range page.Damaged {
			r.damaged(damage)
		}
		for _, rec := range page.Records {
			if err := r.listed(ctx, rec); err != nil {
				return err
			}
		}
		if q.After = page.Next; q.After == (once.Key{}) {
			return nil
		}
	}
}

func (r *comparing) listed(ctx context.Context, rec once.Record) error {
	if group, found := r.Report.find(rec.Key.UUID()); found {
		r.Report.index[group].settled = rec.Status == once.Expired || rec.Status == once.Done && !rec.Outcome.Rejected
		return nil
	}
	f, covered := r.lacking(rec)
	if covered && f.Supports != None { // decide about the record as it is now
		now, err := r.Store.Get(ctx, rec.Key)
		if err != nil {
			return err
		}
		now.Key = rec.Key
		f, covered = r.lacking(now)
	}
	if !covered {
		return nil
	}
	return r.tell(f)
}

// lacking says what it means that the report lacks a record. It returns false if
// the report does not cover the record at all.
func (r *comparing) lacking(rec once.Record) (f Finding, covered bool) {
	f = Finding{Kind: Undecided, Key: rec.Key, Record: rec}
	from, to := rec.Created.Add(-r.Margin), ended(rec).Add(r.Margin)
	switch {
	case rec.Status == once.Absent:
		return f, false
	case !r.Until.IsZero() && !from.Before(r.Until), rec.Status != once.Running && !r.Since.IsZero() && to.Before(r.Since):
		return f, false
	case rec.Status == once.Running, !r.Since.IsZero() && from.Before(r.Since), !r.Until.IsZero() && to.After(r.Until):
		return f, true
	}
	switch rec.Status {
	case once.Done, once.Expired:
		f.Kind = NotThere
		if rec.Status == once.Done && rec.Outcome.Rejected {
			f.Kind = Agrees // nothing has happened on either side
		} else if rec.Status == once.Expired {
			f.Why = "the outcome has expired here: it may have been a rejection"
		}
	default:
		f.Kind = OpenNotThere
		if !r.Since.IsZero() && !r.Until.IsZero() {
			f.Supports = MarkNotDone
		}
	}
	return f, true
}

// ended returns when the last attempt of a record ended, by the store's clock.
func ended(rec once.Record) time.Time {
	at := rec.Updated
	if rec.Status == once.Unknown { // LeaseLeft is negative, the time since, or zero if that is not known
		if lapsed := rec.Created.Add(rec.Age + rec.LeaseLeft); lapsed.After(at) {
			at = lapsed
		}
	}
	return at
}

// reading is a line whose record is to be read.
type reading struct {
	line   line
	group  int
	rec    once.Record
	other  bool  // the record is of another operation or scope
	damage error // of the record, which is not compared
	err    error
}

const batch = 64 // lines whose records are read at the same time

// lines compares the lines of the report.
func (r *comparing) lines(ctx context.Context) error {
	var unread []reading
	flush := func() error {
		if err := r.read(ctx, unread); err != nil {
			return err
		}
		for i := range unread {
			t := &unread[i]
			if t.damage != nil {
				r.damaged(t.damage)
				continue
			}
			if t.other {
				r.Others++
				continue
			}
			if t.line.happened && t.rec.Status == once.Absent {
				r.Foreign++
			}
			if err := r.tell(r.compare(t)); err != nil {
				return err
			}
		}
		unread = unread[:0]
		return nil
	}
	err := r.Report.each(ctx, func(l line, group int) error {
		if r.Report.happenedTwice(group) != r.twice {
			return nil
		}
		if r.done++; r.Progress != nil && r.done%batch == 0 {
			r.Progress(r.done)
		}
		if l.happened && r.Amount == "" && r.Currency == "" && r.Report.index[group].settled {
			r.Counts[Agrees]++
			r.Known++
			return nil
		}
		if unread = append(unread, reading{line: l, group: group}); len(unread) < batch {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}

const atOnce = 16 // records of one GetMany, which may all have large outcomes

// read reads the records of lines.
func (r *comparing) read(ctx context.Context, unread []reading) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	size := 1
	if r.many != nil {
		size = atOnce
	}
	places := make(chan struct{}, r.AtOnce)
	panics := make(chan any, len(unread))
	var all sync.WaitGroup
	for some := range slices.Chunk(unread, size) {
		places <- struct{}{}
		all.Add(1)
		go func() {
			defer all.Done()
			defer func() {
				if cause := recover(); cause != nil {
					panics <- fmt.Sprintf("%v\n\n%s", cause, debug.Stack())
					cancel()
				}
				<-places
			}()
			if !r.readSome(ctx, some) {
				cancel()
			}
		}()
	}
	all.Wait()
	select {
	case cause := <-panics:
		panic(cause) // where a caller can recover
	default:
	}
	var failed error
	for i := range unread {
		if err := unread[i].err; err != nil && (failed == nil || errors.Is(failed, context.Canceled)) {
			failed = err
		}
	}
	return failed
}

// readSome reads the records of a few lines. It reports whether that went well.
func (r *comparing) readSome(ctx context.Context, some []reading) bool {
	for i := range some {
		if some[i].err = r.named(ctx, &some[i]); some[i].err != nil {
			return false
		}
	}
	if r.many == nil {
		return r.readEach(ctx, some)
	}
	var keys []once.Key
	for i := range some {
		if k := some[i].rec.Key; k.ID != "" {
			keys = append(keys, k)
		}
	}
	recs, err := r.many.GetMany(ctx, keys)
	if errors.Is(err, once.ErrCorrupt) { // one of them is damaged
		return r.readEach(ctx, some)
	}
	if err != nil {
		some[0].err = err
		return false
	}
	for i := range some {
		if k := some[i].rec.Key; k.ID != "" {
			some[i].rec, recs = recs[0], recs[1:]
			some[i].rec.Key = k
		}
	}
	return true
}

// readEach is readSome one by one.
func (r *comparing) readEach(ctx context.Context, some []reading) bool {
	for i := range some {
		t := &some[i]
		if t.rec.Key.ID == "" {
			continue
		}
		key := t.rec.Key
		t.rec, t.err = r.Store.Get(ctx, key)
		if t.rec.Key = key; errors.Is(t.err, once.ErrCorrupt) {
			t.damage, t.err = t.err, nil
		}
		if t.err != nil {
			return false
		}
	}
	return true
}

// named finds the key of a line, and whether it is compared at all. The key stays
// zero if the line has it as it travels, and the store does not know it.
func (r *comparing) named(ctx context.Context, t *reading) error {
	key := t.line.key
	if key.ID == "" {
		page, err := r.lister.List(ctx, once.RecordQuery{UUID: t.line.id, Limit: 1})
		if len(page.Damaged) > 0 {
			t.damage = page.Damaged[0]
		}
		if err != nil || len(page.Records) == 0 {
			return err
		}
		key = page.Records[0].Key
	}
	t.rec.Key = key
	t.other = key.Operation != r.Report.of.Operation || key.Scope != r.Report.of.Scope && !r.AnyScope
	return nil
}

// compare compares a line with its record.
func (r *comparing) compare(t *reading) Finding {
	l, rec := t.line, t.rec
	f := Finding{Kind: Agrees, Key: rec.Key, Record: rec, Status: l.status}
	if rec.Created.IsZero() {
		f.Record = once.Record{}
	}
	if f.Key.ID == "" {
		f.Travel = l.text
	}
	f.Lines, _ = r.Report.lines(t.group)
	f.Line = l.object()
	isOpen := rec.Status == once.Unknown || rec.Status == once.Parked
	switch {
	case r.twice:
		f.Kind = HappenedTwice
	case !l.happened && (rec.Status == once.Done && !rec.Outcome.Rejected || rec.Status == once.Expired):
		f.Kind, f.Why = NotThere, fmt.Sprintf("its status there is %.60q", l.status)
	case !l.happened && isOpen:
		f.Kind, f.Why = OpenNotThere, fmt.Sprintf("its status there is %.60q: it may be pending", l.status)
	case !l.happened && rec.Status == once.Running:
		f.Kind = Undecided
	case !l.happened:
	case rec.Status == once.Absent:
		f.Kind = NotHere
		if !rec.Created.IsZero() {
			f.Why = "the key is free here: " + r.Store.Options().Sealing.OpenReason(rec)
		}
	case isOpen && r.Report.Cut && l.number == r.Report.last:
		f.Kind, f.Why = OpenHere, "the line is the last one and has no end: it may have been cut off, and its ID with it"
	case isOpen:
		f.Kind, f.Supports = OpenHere, MarkDone
	case rec.Status == once.Running:
		f.Kind = OpenHere
	case rec.Status == once.Done && rec.Outcome.Rejected:
		f.Kind = RejectedHere
	default:
		r.amounts(&f, l)
	}
	return f
}

// amounts compares the amounts and currencies of a line and a record that is
// done.
func (r *comparing) amounts(f *Finding, l line) {
	if r.Amount == "" && r.Currency == "" {
		return
	}
	f.Kind = NotComparable
	out, why := r.outcome(f.Record)
	if f.Why = why; why != "" {
		return
	}
	same := true
	if r.Amount != "" {
		text, ok := textAt(out, r.Amount)
		ours, isNumber := parseDecimal(text)
		switch {
		case !ok || !isNumber:
			f.Why = fmt.Sprintf("the outcome has no number at %s", r.Amount)
			return
		case l.amount == nil:
			f.Why = "the line has no amount"
			return
		}
		same = ours.shifted(r.Decimals) == *l.amount
		f.Theirs, f.Ours = l.written, fixed(text, r.Decimals)
	}
	if r.Currency != "" {
		text, ok := textAt(out, r.Currency)
		switch {
		case !ok || text == "":
			f.Why = fmt.Sprintf("the outcome has no text at %s", r.Currency)
			return
		case l.currency == "":
			f.Why = "the line has no currency"
			return
		}
		same = same && strings.EqualFold(text, l.currency)
		f.Theirs, f.Ours = strings.TrimSpace(f.Theirs+" "+l.currency), strings.TrimSpace(f.Ours+" "+text)
	}
	if f.Kind = Differs; same {
		f.Kind, f.Theirs, f.Ours = Agrees, "", ""
	}
}

func textAt(v any, pointer string) (string, bool) {
	found, ok := at(v, pointer)
	if !ok {
		return "", false
	}
	return scalar(found)
}

// outcome returns the outcome of a record that is done, or why it cannot be
// read.
func (r *comparing) outcome(rec once.Record) (v any, why string) {
	if rec.Status == once.Expired {
		return nil, "the outcome has expired"
	}
	out, err := r.Store.Options().Sealing.Open(rec)
	switch {
	case err != nil:
		return nil, err.Error()
	case out.Omitted:
		return nil, "no outcome is stored"
	case out.ContentType != "application/json":
		return nil, fmt.Sprintf("the outcome is %.60q, not application/json", out.ContentType)
	}
	if v, err = parseJSON(out.Body); err != nil {
		return nil, "the outcome is not JSON"
	}
	return v, ""
}
