package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/bucket"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/reconcile"
)

const (
	rowsOnPage     = 100     // answers
	maxInquiries   = 16      // that are remembered
	maxInquiring   = 4       // at once
	maxQuestions   = 1000    // keys of one inquiry, as for the command
	questions      = 100     // the default of that
	maxAnswerBytes = 4 << 20 // of an inquiry; further keys are not asked about
	answerTime     = 30 * time.Second
	promptTime     = 2 * time.Second // for which the page about one key waits for the answer
)

// asker asks about the keys of one operation of a store, for all who want to know.
type asker struct {
	reconcile.Operation
	slots chan struct{}

	mu   sync.Mutex
	pace bucket.Bucket
}

// take waits until the next question of the operation is due.
func (a *asker) take(now time.Time) (wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pace.Take(bucket.Rate{PerSecond: a.PerSecond, Burst: 1}, now)
}

// newAskers checks what people may ask about in a store.
func newAskers(s Store) (all []*asker, err error) {
	if len(s.Ask) == 0 {
		return nil, nil
	}
	ended, end := context.WithCancel(context.Background())
	end() // so that Run checks, and does nothing
	if err := (&reconcile.Reconciler{Store: s.Store, Operations: s.Ask}).Run(ended); err != nil {
		return nil, fmt.Errorf("the questions of the store %q: %s", s.Name, strings.TrimPrefix(err.Error(), once.ErrInvalid.Error()+": "))
	}
	for _, op := range s.Ask {
		all = append(all, &asker{Operation: op, slots: make(chan struct{}, cmp.Or(op.AtOnce, 4))})
	}
	return all, nil
}

// askerOf returns what can be asked about a key, or nil.
func (c *Console) askerOf(k keyRef) *asker {
	for _, a := range c.askers[k.Store] {
		if a.Asks(k.Key) {
			return a
		}
	}
	return nil
}

// reply is what was found out about a key, and what became of it.
type reply struct {
	store   Store
	record  once.Record
	finding reconcile.Finding
	asked   bool
	settled bool
	failed  string // why it was not settled, for good
}

// inquiryState is how far an inquiry has come. It goes back to inquired when all, or
// all until somebody stopped it, is settled.
type inquiryState string

const (
	inquiring inquiryState = "asking"
	inquired  inquiryState = "asked"
	answering inquiryState = "settling"
)

// inquiry asks about unknown keys, and changes nothing. Then a person may have the
// answers settle them.
type inquiry struct {
	Number int
	By     string
	About  string // in words
	More   bool   // there are further keys like these
	Rate   float64
	Begun  time.Time

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed once all has been asked about

	mu      sync.Mutex
	state   inquiryState
	replies []reply
	bytes   int
	over    time.Time // when the last answer came
	stopped string    // by whom
	trouble string    // why it stopped by itself
	stop    bool      // it settles nothing further
	settles string    // who settles, or has
	reason  string    // of them
	pace    bucket.Bucket
}

// inquiries are the latest. They are lost with the process: what they have settled is
// in the stores.
type inquiries struct {
	mu      sync.Mutex
	all     []*inquiry // the oldest first
	last    int
	closed  bool
	running sync.WaitGroup
}

// add remembers an inquiry, and counts what it will run.
func (i *inquiries) add(of *inquiry) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.mayRun(); err != nil {
		return err
	}
	i.last++
	of.Number = i.last
	if len(i.all) >= maxInquiries { // fewer than that are at work
		i.all = slices.Delete(i.all, i.idle(), i.idle()+1)
	}
	i.all = append(i.all, of)
	i.running.Add(1)
	return nil
}

func (i *inquiries) idle() int {
	return slices.IndexFunc(i.all, func(of *inquiry) bool { return !of.isWorking() })
}

func (i *inquiries) mayRun() error {
	working := 0
	for _, other := range i.all {
		if other.isWorking() {
			working++
		}
	}
	switch {
	case i.closed:
		return errClosed
	case working >= maxInquiring:
		return errTooMany
	}
	return nil
}

func (i *inquiries) latest() []*inquiry {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := slices.Clone(i.all)
	slices.Reverse(out)
	return out
}

// close ends all, and begins no more.
func (i *inquiries) close() {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	for _, of := range i.latest() {
		of.halt("the end of this console")
	}
}

func (q *inquiry) isWorking() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state != inquired
}

// halt ends it: questions that are under way at once, and settling after the key
// that it is at. It reports whether that was news.
func (q *inquiry) halt(by string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == inquired || q.stop {
		return false
	}
	q.stop, q.stopped = true, by
	q.cancel() // a settlement that is under way has a context of its own
	return true
}

func (q *inquiry) halted() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stop
}

// sleep waits, but not longer than it may go on.
func (q *inquiry) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-q.ctx.Done():
		return false
	}
}

// inquire asks about all keys. Each operation keeps its own rate, and waits for no
// other.
func (c *Console) inquire(q *inquiry) {
	defer c.inquiries.running.Done()
	defer q.cancel()
	groups := make(map[*asker][]int)
	for i := range q.replies {
		r := &q.replies[i]
		a := c.askerOf(keyRef{r.store.Name, r.record.Key})
		groups[a] = append(groups[a], i)
	}
	var all sync.WaitGroup
	for a, these := range groups {
		all.Add(1)
		go func() {
			defer all.Done()
			for _, i := range these {
				if !q.due(a) {
					return
				}
				select {
				case a.slots <- struct{}{}:
				case <-q.ctx.Done():
					return
				}
				all.Add(1)
				go func() {
					defer all.Done()
					c.put(q, a, i)
				}()
			}
		}()
	}
	all.Wait()
	q.mu.Lock()
	q.state, q.over, q.stop = inquired, c.now(), false
	q.mu.Unlock()
	close(q.ended)
}

// due waits until the next question may be put, by the rate of the operation and
// that of the person.
func (q *inquiry) due(a *asker) bool {
	for q.ctx.Err() == nil {
		wait := a.take(time.Now())
		if wait == 0 {
			break
		}
		if !q.sleep(wait) {
			return false
		}
	}
	return q.paced()
}

// paced waits for the rate that the person has chosen.
func (q *inquiry) paced() bool {
	for q.ctx.Err() == nil {
		q.mu.Lock()
		wait := q.pace.Take(bucket.Rate{PerSecond: q.Rate, Burst: 1}, time.Now())
		q.mu.Unlock()
		if wait == 0 {
			return true
		}
		if !q.sleep(wait) {
			return false
		}
	}
	return false
}

// put asks about one key, with a slot that was taken before. A question that is given
// up keeps its slot until it ends, so that there are never more than AtOnce.
func (c *Console) put(q *inquiry, a *asker, i int) {
	r := &q.replies[i] // its store and record do not change
	ctx, cancel := context.WithTimeout(q.ctx, answerTime)
	defer cancel()
	late, end := patient(ctx)
	defer end()
	s, rec := r.store, r.record
	found, err := contained(late, c, s.Name, func() (reconcile.Finding, error) {
		defer func() { <-a.slots }()
		return c.find(ctx, a, s, rec), nil
	})
	if err != nil {
		c.log.Warn("console: a question was given up", "store", s.Name, "key", rec.Key, "error", err)
		found = reconcile.Finding{Record: rec, Settlement: once.Settlement{Status: once.Unknown}, Err: err}
	}
	if q.ctx.Err() != nil && found.Settlement.Status == once.Unknown {
		return // it was not asked to its end
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes += len(found.Settlement.Outcome.Body); q.bytes > maxAnswerBytes && q.bytes > len(found.Settlement.Outcome.Body) {
		q.trouble = "The answers are larger than " + legible.Bytes(maxAnswerBytes) + ", so the rest was not asked about. Settle these, and ask about the others after that."
		q.cancel()
		return
	}
	r.finding, r.asked = found, true
}

// find asks. A panic of a store ends the question, and not the program that the
// console is part of. That of a Lookup is an answer that Find lacks.
func (c *Console) find(ctx context.Context, a *asker, s Store, rec once.Record) (f reconcile.Finding) {
	defer func() {
		if cause := recover(); cause != nil {
			c.log.Error("console: a question panicked", "store", s.Name, "key", rec.Key, "panic", cause, "stack", string(debug.Stack()))
			f = reconcile.Finding{Record: rec, Settlement: once.Settlement{Status: once.Unknown}, Err: errors.New("the question panicked, see the log")}
		}
	}()
	return a.Find(ctx, s.Store, rec)
}

// answerRow is a reply as a page shows it.
type answerRow struct {
	Ref     keyRef
	Answer  string // in words
	Becomes string
	Why     string
	State   string // what became of it
	Bad     bool
	Size    int // of the answer that duplicates would get; -1: none
	Row     int
	Shown   bool
	Text    string
	Cut     bool
}

// becomes names the status that an answer gives a key.
func becomes(set once.Settlement) string {
	switch {
	case set.Status == once.Absent:
		return "free"
	case set.Status == once.Done && set.Outcome.Rejected:
		return "rejected"
	}
	return set.Status.String()
}

// answer names what the other system has said, as the command does.
func answer(f reconcile.Finding) string {
	switch f.Settlement.Status {
	case once.Done:
		if f.Settlement.Outcome.Rejected {
			return "rejected"
		}
		return "done"
	case once.Absent:
		return "not_found"
	case once.Parked:
		return "none that frees it"
	}
	return "none"
}

var answerWords = map[string]string{"done": "it happened", "rejected": "it was rejected", "not_found": "it did not happen", "none": "no answer yet"}

func (r *reply) row(i int) answerRow {
	row := answerRow{Ref: keyRef{r.store.Name, r.record.Key}, Row: i, Size: -1}
	set := r.finding.Settlement
	switch {
	case !r.asked:
		row.Answer = "not asked yet"
		return row
	case r.settled:
		row.State = "settled"
	case r.failed != "":
		row.State, row.Bad = "not changed", true
		row.Why = r.failed
	}
	row.Becomes, row.Answer = becomes(set), cmp.Or(answerWords[answer(r.finding)], answer(r.finding))
	if after, _ := once.MayRetry(r.finding.Err); row.Why == "" {
		switch {
		case after > 0:
			row.Answer, row.Why = "not found", "It can still arrive. Ask again in "+legible.Span(after)+"."
		case r.finding.Err != nil:
			row.Why = legible.Text(r.finding.Err.Error())
		case set.Status == once.Parked:
			row.Why = legible.Text(set.Reason)
		case set.Status == once.Unknown:
			row.Why = "Its operation has no Lookup. The next call with this key repeats the work."
		}
	}
	if set.Status == once.Done && !set.Outcome.Omitted {
		row.Size = len(set.Outcome.Body)
	}
	return row
}

// inquiryPage is what the page of an inquiry shows.
type inquiryPage struct {
	*inquiry
	State     inquiryState
	Working   bool
	Done, Of  int
	Rows      []answerRow
	Counts    []part // by what keys become
	Open      int    // answers that can be settled
	Settled   int
	Took      string
	Stopped   string
	Trouble   string
	Settles   string
	Why       string // why they cannot be settled here
	CanSettle bool
	CanStop   bool
	Reason    string
	RateText  string
	Problem   string
	URL       string
	Every     int
	Single    bool
	Reveal    bool
	From      string // the place of the first row that is shown; empty: they are not cut yet
	Next      int    // that of the next page; 0: this is the last
	NextURL   string
}

func (v *view) inquiryPage(q *inquiry) inquiryPage {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := inquiryPage{inquiry: q, State: q.state, Working: q.state != inquired, Of: len(q.replies), Stopped: q.stopped, Trouble: q.trouble,
		Settles: q.settles, Every: 1000, URL: v.inquiryLink(q.Number), Single: len(q.replies) == 1, Reveal: v.who.Role >= Decide}
	counts := make(map[string]int)
	for i := range q.replies {
		r := &q.replies[i]
		if p.Rows = append(p.Rows, r.row(i)); !r.asked {
			continue
		}
		p.Done++
		counts[becomes(r.finding.Settlement)]++
		switch {
		case r.settled:
			p.Settled++
		case r.mayBeSettled():
			p.Open++
		}
	}
	p.Counts = countsOf(counts)
	end := v.now()
	if !q.over.IsZero() {
		end = q.over
	}
	p.Took = legible.Span(end.Sub(q.Begun))
	p.CanStop = p.Working && v.who.Role >= Decide && !q.stop
	switch {
	case p.Working || p.Open == 0:
	case !v.o.Write:
		p.Why = "The console is read-only, so the answers settle nothing. Start it with Write, or use the command."
	case v.who.Role < Decide:
		p.Why = "To settle keys by these answers, you need the role decide."
	case v.now().Sub(q.over) > planTime:
		p.Why = "These answers are older than " + legible.Span(planTime) + ", and no longer settle anything. Ask again."
	default:
		p.CanSettle = true
	}
	return p
}

// countsOf says how many keys become what.
func countsOf(counts map[string]int) (all []part) {
	for _, to := range []string{"done", "rejected", "free", "parked", "unknown"} {
		if n := counts[to]; n > 0 {
			text := "become " + to
			switch {
			case to == "unknown" && n == 1:
				text = "stays unknown"
			case to == "unknown":
				text = "stay unknown"
			case n == 1:
				text = "becomes " + to
			}
			all = append(all, part{text, plus(n, false)})
		}
	}
	return all
}

func (r *reply) mayBeSettled() bool {
	return r.asked && !r.settled && r.failed == "" && r.finding.Settlement.Status != once.Unknown
}

func (c *Console) inquiryLink(n int) string { return c.link("/ask", "number", strconv.Itoa(n)) }

// beginInquiry asks about the key that a form names, or about all that match the
// filter of the list of unknown keys.
func (v *view) beginInquiry() {
	values := v.r.PostForm
	q := &inquiry{By: v.who.Name, Begun: v.now(), state: inquiring, ended: make(chan struct{})}
	problem := ""
	single := values.Get("id") != ""
	if single {
		k := refOf(values)
		s, r, ok := v.recordOf(k)
		if !ok {
			return
		}
		k.Store = s.Name
		switch {
		case r.Status != once.Unknown:
			v.notes = append(v.notes, note{Bad: true, Text: "Nobody was asked: this key is no longer unknown. This is how it is now."})
			v.showKey(http.StatusConflict, s, r, nil, form{})
			return
		case v.askerOf(k) == nil:
			v.fail(http.StatusNotFound, "Nobody can be asked about this key", "No URL and no Lookup of its operation is configured here. Look at the other system yourself, and settle the key on its page.")
			return
		}
		q.About, q.replies = "one key", []reply{{store: s, record: r}}
	} else if problem = v.collect(q, values); problem != "" {
		v.fail(http.StatusBadRequest, "Nobody was asked", problem)
		return
	}
	if len(q.replies) == 0 {
		v.fail(http.StatusConflict, "There is nothing to ask about", "No unknown key that matches has an operation that can be asked about. Go back to the list of unknown keys.")
		return
	}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	if err := v.inquiries.add(q); err != nil {
		q.cancel()
		v.busy(err)
		return
	}
	about := deed{kind: looked, What: fmt.Sprintf("asked about %s", legible.Count(len(q.replies), "unknown key", "unknown keys"))}
	if single {
		about.Key = keyRef{q.replies[0].store.Name, q.replies[0].record.Key}
		about.Store = about.Key.Store
	}
	v.record(about, "inquiry", q.Number, "selection", q.About)
	go v.Console.inquire(q)
	if single {
		timer := time.NewTimer(promptTime)
		defer timer.Stop()
		select {
		case <-q.ended:
		case <-timer.C:
		case <-v.r.Context().Done():
		}
	}
	v.seeOther(v.inquiryLink(q.Number))
}

func (v *view) busy(err error) {
	if errors.Is(err, errTooMany) {
		v.fail(http.StatusServiceUnavailable, "Too many questions are under way", fmt.Sprintf("Nothing was changed. %d inquiries are at work: wait for one to end, or stop one. Then go back and ask again.", maxInquiring))
		return
	}
	v.fail(http.StatusServiceUnavailable, "The console is closing", "Nothing was changed. Open it again in a moment.")
}

// collect finds the unknown keys that a form is about. It returns what is wrong with
// the form.
func (v *view) collect(q *inquiry, values url.Values) (problem string) {
	f, problem := filterOf(values)
	f.Status = once.Unknown.String()
	if problem != "" {
		return problem
	}
	limit := questions
	if text := strings.TrimSpace(values.Get("limit")); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxQuestions {
			return fmt.Sprintf("The limit is %s: use 1 to %d.", legible.Line(text), maxQuestions)
		}
	}
	if q.Rate, problem = rateOf(values.Get("rate")); problem != "" {
		return problem
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), countTime)
	defer cancel()
	words := []string{"unknown keys"}
	for _, p := range []part{{"operation", f.Operation}, {"scope", f.Scope}, {"store", f.Store}, {"unchanged for at least", f.Older}, {"changed within", f.Newer}} {
		if p.Value != "" {
			words = append(words, p.Name+" "+legible.Line(p.Value))
		}
	}
	if f.NoScope {
		words = append(words, "without a scope")
	}
	q.About = strings.Join(words, ", ")
	for _, s := range v.o.Stores {
		if f.Store != "" && f.Store != s.Name || len(v.askers[s.Name]) == 0 {
			continue
		}
		lister, ok := once.As[once.Lister](s.Store)
		if !ok {
			continue
		}
		for list := f.selection(); ; {
			list.Limit = 1000
			page, err := guarded(ctx, v.Console, s.Name, func() (once.RecordPage, error) { return lister.List(ctx, list) })
			if err != nil {
				return "The store " + s.Name + " does not answer: " + legible.Text(err.Error())
			}
			v.unread(s, page.Damaged)
			for _, r := range page.Records {
				if !f.has(r) || v.askerOf(keyRef{s.Name, r.Key}) == nil {
					continue
				}
				if len(q.replies) == limit {
					q.More = true
					return ""
				}
				q.replies = append(q.replies, reply{store: s, record: r})
			}
			if list.After = page.Next; page.Next == (once.Key{}) {
				break
			}
		}
	}
	return ""
}

// rateOf reads a rate per second. Empty is none.
func rateOf(text string) (rate float64, problem string) {
	if text = strings.TrimSpace(text); text == "" {
		return 0, ""
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= slowest && rate <= fastest) {
		return 0, "The rate is " + legible.Line(text) + ": use 0.001 to 1000000 per second, or leave it empty."
	}
	return rate, ""
}

// inquiryNumbered returns the inquiry that a request names, or says that there is
// none.
func (v *view) inquiryNumbered(text string) *inquiry {
	n, err := strconv.Atoi(text)
	if err == nil {
		for _, q := range v.inquiries.latest() {
			if q.Number == n {
				return q
			}
		}
	}
	v.fail(http.StatusNotFound, "There is no such inquiry", fmt.Sprintf("The console remembers the last %d since it started. What was settled by answers is in the store, and in the log.", maxInquiries))
	return nil
}

func (v *view) showInquiry() {
	values := v.r.URL.Query()
	if q := v.inquiryNumbered(values.Get("number")); q != nil {
		p := v.inquiryPage(q)
		p.cut(values.Get("from"))
		v.renderInquiry(http.StatusOK, p)
	}
}

func (v *view) renderInquiry(status int, p inquiryPage) {
	v.render(status, "ask", v.pageOfInquiry(p))
}

func (v *view) pageOfInquiry(p inquiryPage) page {
	of := page{Title: fmt.Sprintf("Inquiry %d", p.Number), Nav: "unknown"}
	if p.From == "" {
		p.cut("")
	}
	if p.Working {
		of.Live = v.link("/events", "of", "ask", "number", strconv.Itoa(p.Number), "from", p.From)
	}
	if p.Next > 0 {
		p.NextURL = v.link("/ask", "number", strconv.Itoa(p.Number), "from", strconv.Itoa(p.Next))
	}
	of.Body = p
	return of
}

// cut leaves a page of the rows.
func (p *inquiryPage) cut(from string) {
	at, err := strconv.Atoi(from)
	if err != nil || at < 0 || at >= len(p.Rows) {
		at = 0
	}
	p.From = strconv.Itoa(at)
	if p.Rows = p.Rows[at:]; len(p.Rows) > rowsOnPage {
		p.Rows, p.Next = p.Rows[:rowsOnPage], at+rowsOnPage
	}
}

func (v *view) stopInquiry() {
	q := v.inquiryNumbered(v.r.PostForm.Get("number"))
	if q == nil {
		return
	}
	if q.halt(v.who.Name) {
		v.record(deed{What: fmt.Sprintf("stopped inquiry %d", q.Number)})
	}
	v.seeOther(v.inquiryLink(q.Number))
}

// revealReply shows the answer that duplicates of a key would get. That is a deed, as
// for a stored answer.
func (v *view) revealReply() {
	q := v.inquiryNumbered(v.r.PostForm.Get("number"))
	if q == nil {
		return
	}
	p := v.inquiryPage(q)
	i, err := strconv.Atoi(v.r.PostForm.Get("row"))
	if err != nil || i < 0 || i >= len(p.Rows) || p.Rows[i].Size < 0 {
		v.fail(http.StatusNotFound, "There is no such answer", "Open the page of the inquiry again.")
		return
	}
	row := &p.Rows[i]
	q.mu.Lock()
	r := q.replies[i]
	q.mu.Unlock()
	rec := r.finding.Record
	rec.Status, rec.Outcome = once.Done, r.finding.Settlement.Outcome
	out := outcomeOf(r.store, rec)
	if out.Problem != "" {
		v.fail(http.StatusConflict, "The answer cannot be read", out.Problem)
		return
	}
	out.show()
	v.record(deed{kind: looked, What: "looked at the answer to a question", Store: row.Ref.Store, Key: row.Ref}, "inquiry", q.Number)
	row.Shown, row.Text, row.Cut = true, out.Text, out.Cut
	p.cut(strconv.Itoa(i - i%rowsOnPage))
	v.renderInquiry(http.StatusOK, p)
}

// settlingForm reads what a person wants of the answers. If something is wrong with
// it, the page says so, and ok is false.
func (v *view) settlingForm() (q *inquiry, p inquiryPage, rate float64, ok bool) {
	values := v.r.PostForm
	if q = v.inquiryNumbered(values.Get("number")); q == nil {
		return nil, p, 0, false
	}
	p = v.inquiryPage(q)
	p.Reason, p.RateText = strings.TrimSpace(name.Line(values.Get("reason"), maxForm)), strings.TrimSpace(values.Get("rate"))
	rate, p.Problem = rateOf(p.RateText)
	switch {
	case p.Problem != "":
	case !p.CanSettle:
		p.Problem = cmp.Or(p.Why, "Nothing was changed: there is nothing left to settle, or somebody settles it already.")
	case p.Reason == "":
		p.Problem = "Say why these answers can be trusted."
	case len(p.Reason) > longestReason:
		p.Problem = fmt.Sprintf("The reason has %d bytes, but only %d are stored. Shorten it.", len(p.Reason), longestReason)
	}
	if p.Problem == "" {
		return q, p, rate, true
	}
	status := http.StatusUnprocessableEntity
	if !p.CanSettle {
		status = http.StatusConflict
	}
	v.renderInquiry(status, p)
	return q, p, 0, false
}

// confirmInquiry repeats what the answers will change.
func (v *view) confirmInquiry() {
	q, p, _, ok := v.settlingForm()
	if !ok {
		return
	}
	p.Rows = slices.DeleteFunc(p.Rows, func(r answerRow) bool { return r.State != "" || r.Becomes == "" || r.Becomes == once.Unknown.String() })
	counts := make(map[string]int)
	for _, r := range p.Rows {
		counts[r.Becomes]++
	}
	p.Counts = countsOf(counts)
	v.render(http.StatusOK, "askagree", page{Title: "Settle by the answers", Nav: "unknown", Body: agreeInquiry{p, len(p.Rows) > maxSamples, q.Number, counts["free"] > 0}})
}

// agreeInquiry repeats what will be settled.
type agreeInquiry struct {
	inquiryPage
	Cut   bool
	Num   int
	Frees bool // some keys run again
}

// Samples are the first rows.
func (p agreeInquiry) Samples() []answerRow { return p.Rows[:min(len(p.Rows), maxSamples)] }

// settleInquiry settles keys by the answers about them.
func (v *view) settleInquiry() {
	q, p, rate, ok := v.settlingForm()
	if !ok {
		return
	}
	if v.r.PostForm.Get("open") != strconv.Itoa(p.Open) {
		p.Problem = "Nothing was changed: some of these keys were settled since you were asked. Look at what is left."
		v.renderInquiry(http.StatusConflict, p)
		return
	}
	if err := v.inquiries.settle(q, v.who.Name, p.Reason, rate); err != nil {
		if errors.Is(err, errNoPlan) { // somebody was faster
			p = v.inquiryPage(q)
			p.Problem = "Nothing was changed by you: somebody else has begun to settle these."
			v.renderInquiry(http.StatusConflict, p)
			return
		}
		v.busy(err)
		return
	}
	about := deed{What: fmt.Sprintf("began to settle %s by the answers of inquiry %d", legible.Count(p.Open, "key", "keys"), q.Number), Reason: p.Reason}
	if p.Single {
		about.Key = p.Rows[0].Ref
		about.Store = about.Key.Store
	}
	v.record(about)
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.Console.settleBy(q, v.who.Name, p.Reason)
	}()
	timer := time.NewTimer(promptTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	v.seeOther(v.inquiryLink(q.Number))
}

// settle claims an inquiry for somebody who settles by its answers.
func (i *inquiries) settle(q *inquiry, by, reason string, rate float64) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.mayRun(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != inquired {
		return errNoPlan
	}
	q.state, q.settles, q.reason, q.stop, q.stopped, q.trouble = answering, by, reason, false, "", ""
	q.Rate = rate
	q.ctx, q.cancel = context.WithCancel(context.Background())
	i.running.Add(1)
	return nil
}

// settleBy settles the keys one after the other. Each answer settles only the record
// that was asked about.
func (c *Console) settleBy(q *inquiry, by, reason string) {
	defer c.inquiries.running.Done()
	defer q.cancel() // as it is now: another round has its own
	changed, left, trouble := 0, 0, ""
	for i := range q.replies {
		q.mu.Lock()
		r := q.replies[i]
		q.mu.Unlock()
		if !r.mayBeSettled() {
			continue
		}
		if q.halted() || !q.paced() || q.halted() {
			break
		}
		err := c.settleOne(r, by, reason)
		q.mu.Lock()
		kept := &q.replies[i]
		switch {
		case err == nil:
			kept.settled = true
			changed++
		case errors.Is(err, once.ErrLeaseLost):
			kept.failed = "The record has changed since it was asked about. Open the key."
			left++
		case errors.Is(err, once.ErrOutcomeUnknown), errors.Is(err, once.ErrInvalid), errors.Is(err, once.ErrOutcomeRefused):
			kept.failed = legible.Text(err.Error())
			left++
		default:
			kept.failed = "It is not known whether this was recorded: " + legible.Text(err.Error()) + ". Open the key, and look for the reason."
			trouble = "The store " + r.store.Name + " failed, so the rest was left as it is: " + legible.Text(err.Error())
			q.trouble = trouble
		}
		q.mu.Unlock()
		if trouble != "" {
			break
		}
	}
	q.mu.Lock()
	q.state = inquired
	q.mu.Unlock()
	attrs := []any{"inquiry", q.Number, "by", by, "settled", changed, "changed_by_others", left, "reason", reason}
	if trouble != "" {
		c.log.Warn("console: settling by answers failed", append(attrs, "error", trouble)...)
	} else {
		c.log.Info("console: settling by answers ended", attrs...)
	}
	c.trail.add(deed{At: c.now(), By: by, What: fmt.Sprintf("settled %s by the answers of inquiry %d", legible.Count(changed, "key", "keys"), q.Number), Reason: reason})
}

// settleOne settles one key by its answer.
func (c *Console) settleOne(r reply, by, reason string) error {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	said := answer(r.finding)
	if _, err := guarded(ctx, c, r.store.Name, func() (struct{}, error) {
		return struct{}{}, r.finding.Settle(ctx, r.store.Store, fmt.Sprintf("the answer was %s, applied by %s: %s", said, by, reason))
	}); err != nil {
		return err
	}
	c.log.InfoContext(ctx, "console: an answer was recorded", "by", by, "store", r.store.Name, "key", r.record.Key, "attempt", r.finding.Record.Attempt,
		"answer", said, "becomes", becomes(r.finding.Settlement), "reason", reason)
	return nil
}
