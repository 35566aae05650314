package console

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/internal/legible"
)

const (
	maxReport      = 16 << 20 // bytes of a report that is uploaded, which is in memory
	maxReportLines = 500_000  // of it: each has an entry in an index
	maxDrained     = 1 << 30  // bytes that are read from a browser, so that it shows the answer
	maxFields      = 64       // of a form with a file
	maxField       = 64 << 10 // bytes of each
	findingsOnPage = 50
)

// upload is a file that came with a form.
type upload struct {
	name    string
	content []byte
}

const larger = "Have whoever runs the console name the file in its Reports (once console --report), or use once reconcile --against."

// readUpload reads a form with a file. The token of the form is before the file, so
// that nothing is kept for a form of another site. If it cannot be read, it says so
// and returns false.
func (v *view) readUpload() bool {
	if v.placed = v.comparisons.enter(); !v.placed {
		v.fullHouse()
		return false
	}
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxDrained)
	damaged := func() bool {
		v.fail(http.StatusBadRequest, "The form cannot be read", "It is damaged, or was cut off. Nothing was compared: send it again.")
		return false
	}
	parts, err := v.r.MultipartReader()
	if err != nil {
		return damaged()
	}
	v.r.PostForm = make(url.Values)
	for n := 0; ; n++ {
		part, err := parts.NextPart()
		if err == io.EOF {
			return true
		}
		if err != nil || n == maxFields {
			return damaged()
		}
		most := maxField
		isFile := part.FormName() == "file"
		if isFile {
			if most = maxReport; !hmac.Equal([]byte(v.r.PostForm.Get(tokenField)), []byte(v.token)) {
				v.outOfDate()
				return false
			}
		}
		content, err := io.ReadAll(io.LimitReader(part, int64(most)+1))
		switch {
		case err != nil:
			return damaged()
		case isFile && len(content) > most:
			_, _ = io.Copy(io.Discard, v.r.Body) // a browser that is still sending shows no answer
			v.fail(http.StatusRequestEntityTooLarge, "The report is too large", "A report that is uploaded may have "+legible.Bytes(maxReport)+". Nothing was compared. "+larger)
			return false
		case len(content) > most:
			return damaged()
		case isFile && part.FileName() != "":
			v.upload = &upload{part.FileName(), content}
		case !isFile:
			v.r.PostForm.Add(part.FormName(), string(content))
		}
	}
}

// leave gives back the place for a report, unless a comparison has it.
func (v *view) leave() {
	if v.placed {
		v.placed = false
		v.comparisons.leave()
	}
}

func (v *view) fullHouse() {
	v.fail(http.StatusServiceUnavailable, "Other reports are being compared", fmt.Sprintf("Nothing was compared. %d reports are at work: wait for one to end, or stop one. One that was given up counts until its store answers. Then send the form again.", maxComparing))
}

// reconcilePage asks for a report, and lists comparisons.
type reconcilePage struct {
	Form       url.Values
	Problem    string
	MayCompare bool
	Reports    []Report
	Operations []string
	Scopes     []string
	Most       int
	All        []compared
}

// Is reports whether a field of the form has a value.
func (p reconcilePage) Is(field, value string) bool { return p.Form.Get(field) == value }

// Any reports whether any of these fields is filled in, so that they are shown.
func (p reconcilePage) Any(fields ...string) bool {
	for _, f := range fields {
		if p.Form.Get(f) != "" {
			return true
		}
	}
	return false
}

func (v *view) reconcile() {
	form := make(url.Values)
	if n, err := strconv.Atoi(v.r.URL.Query().Get("like")); err == nil {
		if x := v.comparisons.numbered(n); x != nil {
			form = x.Form
		}
	}
	v.askReport(http.StatusOK, form, "")
}

func (v *view) askReport(status int, form url.Values, problem string) {
	operations, scopes := v.names.known()
	p := reconcilePage{Form: form, Problem: problem, MayCompare: v.who.Role >= Decide, Reports: v.o.Reports, Operations: plain(operations), Scopes: plain(scopes), Most: maxReport}
	for _, x := range v.comparisons.latest() {
		p.All = append(p.All, v.comparedOf(x))
	}
	v.render(status, "reconcile", page{Title: "Reconcile", Nav: "reconcile", Body: p})
}

// fieldsOfReport are the fields of the form that a comparison keeps.
var fieldsOfReport = []string{"report", "store", "operation", "scope", "all-scopes", "format", "delimiter", "column-is", "id-column", "skip-empty", "status-column", "happened",
	"amount-column", "amount", "decimals", "decimal-comma", "currency-column", "currency", "since", "until", "margin"}

// isShort reports whether a page can have a text in a field again.
func isShort(text string) bool { return utf8.ValidString(text) && len(text) <= 1000 }

// askedBy reads the form. It returns what is wrong with it.
func (v *view) askedBy(form url.Values) (a asked, problem string) {
	get := func(field string) string { return strings.TrimSpace(form.Get(field)) }
	for _, field := range fieldsOfReport {
		if !isShort(form.Get(field)) {
			return a, "The field " + field + " is too long, or not UTF-8."
		}
	}
	var ok bool
	if a.Store, ok = v.store(form.Get("store")); !ok {
		return a, "Choose the store."
	}
	a.of = once.Key{Scope: form.Get("scope"), Operation: get("operation")}
	if err := (once.Key{Scope: a.of.Scope, Operation: a.of.Operation, ID: "any"}).Validate(); err != nil {
		return a, "Name the operation of the keys: " + strings.TrimPrefix(err.Error(), once.ErrInvalid.Error()+": ")
	}
	f := &a.format
	*f = crosscheck.Format{Syntax: map[string]crosscheck.Syntax{"csv": crosscheck.CSV, "jsonl": crosscheck.JSONLines}[form.Get("format")],
		SkipEmpty: form.Get("skip-empty") == "yes", Status: get("status-column"), Amount: get("amount-column"), DecimalComma: form.Get("decimal-comma") == "yes", Currency: get("currency-column")}
	switch d := form.Get("delimiter"); {
	case d == "":
	case d == "tab":
		f.Delimiter = '\t'
	case utf8.RuneCountInString(d) == 1:
		f.Delimiter, _ = utf8.DecodeRuneInString(d)
	default:
		return a, "The delimiter is one character, or tab."
	}
	c := &a.with
	if form.Get("column-is") == "key" {
		if f.Key = get("id-column"); f.Key == "" {
			return a, "Name the column with the keys as they travel."
		}
		c.AnyScope = form.Get("all-scopes") == "yes"
	} else {
		f.ID = get("id-column")
	}
	for value := range strings.SplitSeq(form.Get("happened"), ",") {
		if value = strings.TrimSpace(value); value != "" {
			f.Happened = append(f.Happened, value)
		}
	}
	c.Amount, c.Currency = get("amount"), get("currency")
	switch {
	case (f.Status == "") != (len(f.Happened) == 0):
		return a, "A status column needs the values that mean that it happened, and the other way round."
	case (f.Amount == "") != (c.Amount == ""):
		return a, "To compare amounts, say where they are in the report and in the outcome."
	case (f.Currency == "") != (c.Currency == ""):
		return a, "To compare currencies, say where they are in the report and in the outcome."
	case c.Amount != "" && c.Amount[0] != '/', c.Currency != "" && c.Currency[0] != '/':
		return a, "Where the outcome has it is a JSON pointer, such as /amount."
	}
	if text := get("decimals"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 18 || n > 0 && c.Amount == "" {
			return a, "The decimals are 0 to 18, of an amount."
		}
		c.Decimals = n
	}
	var err error
	if c.Since, err = pointInTime(get("since")); err != nil {
		return a, "The beginning is " + err.Error()
	}
	if c.Until, err = pointInTime(get("until")); err != nil {
		return a, "The end is " + err.Error()
	}
	switch {
	case !c.Since.IsZero() && !c.Until.IsZero() && !c.Since.Before(c.Until):
		return a, "The report ends before it begins: exchange the two times."
	case c.Until.After(v.now()):
		return a, "The end is in the future, which no report covers: give the time at which the report ends."
	}
	if text := get("margin"); text != "" {
		if c.Margin, err = time.ParseDuration(text); err != nil || c.Margin < 0 {
			return a, "The margin is " + legible.Line(text) + ": write it like 90s, 15m or 48h."
		}
		a.margin = true
	}
	return a, v.reportOf(&a, form.Get("report"))
}

// reportOf finds the report of a form.
func (v *view) reportOf(a *asked, called string) (problem string) {
	if called == "" {
		switch up := v.upload; {
		case up == nil:
			return "Choose the file of the report."
		case bytes.Count(up.content, []byte("\n")) > maxReportLines:
			return fmt.Sprintf("The report has over %d lines. %s", maxReportLines, larger)
		default:
			a.Label = cut(up.name)
			content := string(up.content)
			a.open = func() (io.ReadSeekCloser, error) { return memory{strings.NewReader(content)}, nil }
			return ""
		}
	}
	for _, r := range v.o.Reports {
		if r.Name == called {
			a.Label, a.open = r.Name, func() (io.ReadSeekCloser, error) { return openFile(r.File) }
			return ""
		}
	}
	return "This console has no report with that name: choose one."
}

// pointInTime reads a time. Without a zone it is UTC.
func pointInTime(text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02 15:04", time.DateTime, time.DateOnly} {
		if t, err = time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return t, errors.New(legible.Line(text) + ": write it like 2026-11-22T00:00:00Z.")
}

// beginComparison begins what somebody has asked for. A report that was uploaded is
// checked before, so that the form can be corrected.
func (v *view) beginComparison() {
	form := make(url.Values)
	for _, field := range fieldsOfReport {
		if value := v.r.PostForm.Get(field); value != "" && isShort(value) {
			form.Set(field, value)
		}
	}
	a, problem := v.askedBy(v.r.PostForm)
	if problem == "" && v.upload != nil && form.Get("report") == "" {
		file, _ := a.open()
		if _, err := crosscheck.Read(v.r.Context(), file, a.format, a.of); err != nil {
			problem = "Nothing was compared. " + legible.Text(err.Error())
		}
	}
	if problem != "" {
		v.askReport(http.StatusUnprocessableEntity, form, problem)
		return
	}
	if !v.placed {
		if v.placed = v.comparisons.enter(); !v.placed {
			v.fullHouse()
			return
		}
		defer v.leave()
	}
	x, ok := v.comparisons.begin(a, v.who.Name, form, v.now())
	if !ok {
		v.fail(http.StatusServiceUnavailable, "The console is closing", "Nothing was compared. Open it again in a moment.")
		return
	}
	v.placed = false // it is the comparison's now
	v.names.see(once.Key{Scope: a.of.Scope, Operation: a.of.Operation})
	what := fmt.Sprintf("began comparison %d of the report %s with %s", x.Number, legible.Line(a.Label), legible.Line(a.of.Operation))
	if a.with.Amount != "" || a.with.Currency != "" {
		what += ", with what answers have at " + legible.Line(strings.TrimSpace(a.with.Amount+" "+a.with.Currency))
	}
	v.record(deed{kind: looked, What: what, Store: a.Store.Name})
	go v.Console.compare(x)
	v.seeOther(v.link("/reconcile/result", "number", strconv.Itoa(x.Number)))
}

// comparisonNumbered returns the comparison that a request names, or says that there
// is none.
func (v *view) comparisonNumbered(text string) *comparison {
	if n, err := strconv.Atoi(text); err == nil {
		if x := v.comparisons.numbered(n); x != nil {
			return x
		}
	}
	v.fail(http.StatusNotFound, "There is no such comparison", fmt.Sprintf("The console remembers the last %d or fewer, since it started. Compare the report again.", maxComparisons))
	return nil
}

// comparisonPage is a comparison, with a page of its findings of one kind.
type comparisonPage struct {
	compared
	Kinds     []kindRow
	Kind      string
	Advice    string
	Meaning   string
	Rows      []findingRow
	Kept      int // of the kind
	Count     int // of the kind
	First     string
	Next      string
	Cautions  []string
	MayShow   bool // what was hidden
	Hidden    bool // something is
	Shown     bool
	Show      string // the URL of the form that shows it
	MaySettle bool
	Settle    string
}

// Cut says that its pages end where a search was ended: never, because what was found
// is in memory.
func (comparisonPage) Cut() bool { return false }

type kindRow struct {
	Name, Meaning, URL string
	Count              int
	Current, Disagrees bool
}

type findingRow struct {
	Ref          keyRef
	Known        bool // the store knows the key, so that it has a page
	Travel       string
	Status       string
	Attempt      int64
	Lines        string
	Why          string
	Secret       bool // there is more to be shown
	There        string
	Theirs, Ours string
	Settles      string // what it becomes by the report
}

// rowOf shows a finding. What the lines of the report and the outcome have in them is
// hidden until somebody asks for it.
func (x *comparison) rowOf(f finding, shown bool) findingRow {
	row := findingRow{Ref: keyRef{x.Store.Name, f.Key}, Known: !f.Record.Created.IsZero(), Travel: f.Travel, Status: f.Record.Status.String(), Attempt: f.Record.Attempt}
	if f.Why != "" {
		row.Why = legible.Text(f.Why)
	}
	for _, n := range f.Lines {
		row.Lines += fmt.Sprint(n, " ")
	}
	if f.More > 0 {
		row.Lines += "and " + plus(f.More, false) + " more"
	}
	if len(f.Lines) > 0 && (f.Kind == crosscheck.NotThere || f.Kind == crosscheck.OpenNotThere) {
		row.Why = "it has another status there" // Why quotes the line
		row.Secret = true
	}
	if f.Theirs != "" || f.Ours != "" {
		row.Secret = true
	}
	if shown && row.Secret {
		row.There, row.Theirs, row.Ours = legible.Line(f.Status), legible.Line(f.Theirs), legible.Line(f.Ours)
	}
	switch f.Supports {
	case crosscheck.MarkDone:
		row.Settles = "done"
	case crosscheck.MarkNotDone:
		row.Settles = "free"
	}
	return row
}

func (v *view) showComparison() {
	q := v.r.URL.Query()
	x := v.comparisonNumbered(q.Get("number"))
	if x == nil {
		return
	}
	after, err := strconv.Atoi(cmp.Or(q.Get("after"), "0"))
	if err != nil || after < 0 {
		v.damaged()
		return
	}
	p, ok := v.comparisonPage(x, q.Get("kind"), after, v.r.Method == http.MethodPost)
	if !ok {
		v.damaged()
		return
	}
	if p.Shown && len(p.Rows) > 0 {
		v.record(deed{kind: looked, What: fmt.Sprintf("looked at what the report and the answers have in comparison %d", x.Number), Store: x.Store.Name}, "kind", p.Kind, "after", after)
	}
	v.render(http.StatusOK, "comparison", v.pageOfComparison(p))
}

// pageOfComparison is a page that is kept up to date while the comparison is at work.
func (v *view) pageOfComparison(p comparisonPage) page {
	of := page{Title: p.Title, Nav: "reconcile", Body: p}
	if p.Working {
		of.Live = v.link("/events", "of", "comparison", "number", strconv.Itoa(p.Number))
	}
	return of
}

// comparisonPage returns a comparison with its findings of a kind, or of the first one
// that disagrees. What lines and answers have in them is there only if it is shown.
func (v *view) comparisonPage(x *comparison, kind string, after int, shown bool) (p comparisonPage, ok bool) {
	p = comparisonPage{compared: v.comparedOf(x), Shown: shown, MayShow: v.who.Role >= Decide, MaySettle: v.who.Role >= Decide && v.o.Write}
	p.Settle = v.link("/reconcile/settle", "number", strconv.Itoa(x.Number))
	if p.Working || p.State != jobFinished {
		return p, true
	}
	current := -1
	for _, k := range crosscheck.Kinds() {
		n := p.Summary.Counts[k]
		row := kindRow{Name: k.String(), Meaning: k.Meaning(), Count: n, Disagrees: k.Disagrees()}
		if k == crosscheck.Agrees {
			row.Meaning = "it agrees"
		}
		if n == 0 && k != crosscheck.Agrees {
			continue
		}
		if k.Disagrees() {
			row.URL = v.link("/reconcile/result", "number", strconv.Itoa(x.Number), "kind", k.String())
			if current < 0 && kind == "" || kind == k.String() {
				current, row.Current = int(k), true
			}
		}
		p.Kinds = append(p.Kinds, row)
	}
	if current < 0 && kind != "" {
		return p, false
	}
	if current >= 0 {
		v.findings(&p, x, crosscheck.Kind(current), after)
	}
	p.Cautions = x.cautions(p.compared)
	return p, true
}

// findings adds a page of findings.
func (v *view) findings(p *comparisonPage, x *comparison, kind crosscheck.Kind, after int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := x.found[kind]
	p.Kind, p.Advice, p.Meaning, p.Kept, p.Count = kind.String(), kind.Advice(), kind.Meaning(), len(all), x.summary.Counts[kind]
	number := strconv.Itoa(x.Number)
	at := func(n int) string {
		return v.link("/reconcile/result", "number", number, "kind", p.Kind, "after", strconv.Itoa(n))
	}
	after = min(after, len(all))
	end := min(after+findingsOnPage, len(all))
	for _, f := range all[after:end] {
		row := x.rowOf(f, p.Shown)
		p.Hidden = p.Hidden || row.Secret
		p.Rows = append(p.Rows, row)
	}
	if after > 0 {
		p.First = v.link("/reconcile/result", "number", number, "kind", p.Kind)
	}
	if end < len(all) {
		p.Next = at(end)
	}
	p.Show = at(after)
}

// cautions says what the comparison does not cover.
func (x *comparison) cautions(p compared) (all []string) {
	s := p.Summary
	if x.format.ID == "" && x.format.Key == "" {
		all = append(all, "The column "+legible.Line(p.Report.Column)+" was taken for the IDs of keys.")
	}
	if s.OnlyOpen {
		all = append(all, "This store lists only keys that are not done. What is done here and missing in the report cannot be told.")
	}
	if s.Damaged > 0 {
		all = append(all, "Lines or records were not compared, because a record cannot be read: "+
			plus(s.Damaged, false)+". The first: "+legible.Text(s.Damage.Error()))
	}
	if p.Report.Skipped > 0 {
		all = append(all, "Lines without an ID were skipped: "+plus(p.Report.Skipped, false)+".")
	}
	if s.Others > 0 {
		all = append(all, "Lines about keys of other operations or scopes were not compared: "+plus(s.Others, false)+".")
	}
	if s.Counts[crosscheck.NotThere] > 0 && x.with.Since.IsZero() && x.with.Until.IsZero() {
		all = append(all, "Without the time that it covers, the report counts as one of all time.")
	}
	if s.Known+s.Others == 0 && p.Report.Lines > 0 {
		all = append(all, "No key of the report is known here: check the column, the operation, the scope and the store.")
	}
	return all
}

func (v *view) stopComparison() {
	x := v.comparisonNumbered(v.r.PostForm.Get("number"))
	if x == nil {
		return
	}
	if x.end(v.who.Name) {
		v.record(deed{What: fmt.Sprintf("stopped comparison %d", x.Number), Store: x.Store.Name})
	}
	v.seeOther(v.link("/reconcile/result", "number", strconv.Itoa(x.Number)))
}
