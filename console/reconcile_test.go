package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

// send uploads a report by the form of the page.
func (b *browser) send(name, content string, pairs ...string) *browser {
	b.t.Helper()
	form := b.get("/reconcile").form("/reconcile")
	if form == nil {
		b.t.Fatalf("there is no form:\n%s", b.text)
	}
	values := form.values()
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	write := func(err error) {
		if err != nil {
			b.t.Fatal(err)
		}
	}
	write(w.WriteField(tokenField, values.Get(tokenField)))
	values.Del(tokenField)
	values.Del("file")
	part, err := w.CreateFormFile("file", name)
	write(err)
	_, err = part.Write([]byte(content))
	write(err)
	for field := range values {
		write(w.WriteField(field, values.Get(field)))
	}
	write(w.Close())
	return b.sendBody(w.FormDataContentType(), body.Bytes())
}

func (b *browser) sendBody(kind string, body []byte) *browser {
	r := httptest.NewRequest(http.MethodPost, "http://localhost:9470/reconcile", bytes.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Origin", "http://localhost:9470")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return b.do(r)
}

// compared uploads a report, and waits for the end of the comparison.
func (b *browser) compared(c *Console, content string, pairs ...string) *browser {
	b.t.Helper()
	b.send("charges.csv", content, append([]string{"operation", "pay"}, pairs...)...).is(http.StatusOK)
	x := c.comparisons.latest()[0]
	testenv.Await(b.t, "the comparison ends", func() bool { return !x.isWorking() })
	return b.get("/reconcile/result?number=" + strconv.Itoa(x.Number))
}

func pay(id string) once.Key { return once.Key{Operation: "pay", ID: id} }

// lapse makes a record whose holder is gone, and is known to be.
func lapse(t *testing.T, s once.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		claim(t, s, pay(id), once.Key{}, time.Nanosecond)
	}
	for _, id := range ids {
		testenv.Await(t, "the lease lapses", func() bool { return get(t, s, keyRef{Key: pay(id)}).Status == once.Unknown })
	}
}

// covers is a period that covers all that has happened.
func covers() []string {
	return []string{"since", "2001-01-01T00:00:00Z", "until", time.Now().Add(-time.Nanosecond).Format(time.RFC3339Nano), "margin", "0s", "id-column", "id"}
}

func TestAReportIsCompared(t *testing.T) {
	s := memstore.New(nil)
	for id, amount := range map[string]string{"same": "10.0", "more": "11.75", "missing": "7"} {
		settle(t, s, claim(t, s, pay(id), once.Key{}, time.Hour), once.Done, "", `{"amount":`+amount+`}`, "application/json")
	}
	unknown(t, s, pay("open"))
	unknown(t, s, pay("pending"))
	var log logtest.Log
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Log: slog.New(slog.NewTextHandler(&log, nil))}) // read-only
	b := as(t, c, decideToken)
	b.get("/").follow("Reconcile").is(200).shows("No report was compared yet")
	b.compared(c, "id,amount,state\nsame,10,paid\nmore,12.34,paid\nopen,1,paid\npending,1,in-review-4242\nnobody,1,paid\ntwice,1,paid\ntwice,1,paid\n",
		"id-column", "id", "amount-column", "amount", "amount", "/amount", "status-column", "state", "happened", "paid, settled")
	b.is(200).shows("6 keys differ", "happened_twice 1", "not_here 1", "open_here 1", "not_there 1", "open_not_there 1", "differs 1", "agrees 1",
		"Without the time that it covers").hides("Settle keys", "12.34", "in-review")
	b.get("/reconcile").shows("charges.csv", "finished", "dee").follow("1").is(200)

	// What is in the report and in answers is hidden until it is asked for.
	page := "/reconcile/result?number=1&kind="
	look := as(t, c, lookToken)
	for _, who := range []*browser{b, look} {
		who.get(page+"differs").is(200).shows("pay more").hides("12.34", "11.75")
		who.get(page+"open_not_there").shows("pay pending", "another status there").hides("in-review")
		who.get(page+"not_there").shows("pay missing", "none")
		who.get(page+"happened_twice").shows("pay twice", "7 8", "Compare the lines")
	}
	look.hides("Compare again").get("/reconcile").shows("you need the role decide", "charges.csv").hides("Operation ")
	if look.form("/reconcile") != nil {
		t.Error("somebody who may look gets the form")
	}
	if strings.Contains(log.String(), "looked at what the report") {
		t.Error("it is said that somebody looked")
	}
	b.get(page+"differs").fill("/reconcile/result").is(200).shows("12.34", "11.75", "in the audit")
	b.get(page + "open_not_there").fill("/reconcile/result").shows("in-review-4242")
	b.get("/audit").shows("began comparison 1 of the report charges.csv with pay, with what answers have at /amount", "looked at what the report")
	b.get(page + "differs").follow("pay more").is(200).shows("Timeline")

	b.get(page + "agrees").is(400)
	b.get(page + "nonsense").is(400)
	b.get("/reconcile/result?number=1&after=-1").is(400)
	b.get("/reconcile/result?number=1&kind=differs&after=99999999").is(200)
	b.get("/reconcile/result?number=7").is(404)
	b.get("/reconcile?like=1").is(200)
	if v := b.form("/reconcile").values(); v.Get("amount") != "/amount" || v.Get("happened") != "paid, settled" {
		t.Errorf("the form has %v", v)
	}
	b.get("/reconcile/settle?number=1").is(http.StatusForbidden)
}

func TestBadReportsAndFormsAreExplained(t *testing.T) {
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: memstore.New(nil)}, {Name: "other", Store: memstore.New(nil)}}})
	b := as(t, c, decideToken)
	const good = "id\n1\n"
	for _, test := range []struct {
		content, want string
		form          []string
	}{
		{"", "it is empty", nil},
		{"\xff\xfei\x00d\x00", "UTF-16: convert it", nil},
		{"PK\x03\x04abc", "a ZIP archive or a spreadsheet", nil},
		{"id,a\n1,\"2\n", `extraneous or missing " in quoted-field`, nil},
		{"id,a\n1\n", "it has 1 fields, and the header has 2", nil},
		{"id\nM\xfcller\n", "line 2 of the report: it is not UTF-8", nil},
		{"id\n" + strings.Repeat("x", 2<<20) + "\n", "over 1 MiB", nil},
		{"id\n" + strings.Repeat("x", 300) + "\n", "line 2 of the report: id", nil},
		{`{"id":[1]}` + "\n", "neither a string nor a number", nil},
		{"order;amount\n1;2\n", "Perhaps the delimiter is not a comma", nil},
		{"id\n" + strings.Repeat("1\n", maxReportLines+1), "over 500000 lines", nil},
		{good, "Name the operation", []string{"operation", ""}},
		{good, "Name the operation", []string{"operation", "a\x00"}},
		{good, "Choose the store", []string{"store", "nobody"}},
		{good, "needs the values", []string{"status-column", "a"}},
		{good, "To compare amounts", []string{"amount", "/a"}},
		{good, "JSON pointer", []string{"amount", "a", "amount-column", "b"}},
		{good, "To compare currencies", []string{"currency-column", "a"}},
		{good, "decimals", []string{"decimals", "99"}},
		{good, "The beginning is yesterday: write it like", []string{"since", "yesterday"}},
		{good, "ends before it begins", []string{"since", "2026-01-02", "until", "2026-01-01"}},
		{good, "in the future", []string{"until", "2999-01-01"}},
		{good, "The margin is -1s", []string{"margin", "-1s"}},
		{good, "one character, or tab", []string{"delimiter", "::"}},
		{good, "Name the column with the keys as they travel", []string{"column-is", "key"}},
		{good, "too long, or not UTF-8", []string{"happened", "\xff"}},
		{good, "no report with that name", []string{"report", "../../etc/passwd"}},
		{good, "no report with that name", []string{"report", "/etc/passwd"}},
	} {
		b.send("r.csv", test.content, append([]string{"store", "shop", "operation", "pay"}, test.form...)...)
		b.is(http.StatusUnprocessableEntity).shows(test.want)
	}
	if all := c.comparisons.latest(); len(all) > 0 || c.comparisons.places != 0 {
		t.Errorf("%d comparisons were begun, %d places are taken", len(all), c.comparisons.places)
	}
	b.send("r.csv", strings.Repeat("x", maxReport+1), "operation", "pay").is(http.StatusRequestEntityTooLarge).shows("may have 16.0 MiB", "once reconcile --against")

	token := b.get("/reconcile").form("/reconcile").values().Get(tokenField)
	for _, body := range []string{"", "--x\r\n", "--x\r\nContent-Disposition: form-data; name=\"form\"\r\n\r\n" + token, "--x--\r\n",
		strings.Repeat("--x\r\nContent-Disposition: form-data; name=\"form\"\r\n\r\n"+token+"\r\n", maxFields+2),
		"--x\r\nContent-Disposition: form-data; name=\"form\"\r\n\r\n" + strings.Repeat("x", maxField+1) + "\r\n--x--\r\n",
		"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nid\n1\n\r\n--x\r\nContent-Disposition: form-data; name=\"form\"\r\n\r\n" + token + "\r\n--x--\r\n",
	} {
		if b.sendBody("multipart/form-data; boundary=x", []byte(body)); b.status != 400 && b.status != 403 {
			t.Errorf("%.80q: status %d", body, b.status)
		}
	}
	b.sendBody("multipart/form-data", nil).is(400)
	if len(c.comparisons.latest()) > 0 || c.comparisons.places != 0 {
		t.Errorf("%d places are taken", c.comparisons.places)
	}
}

// Nobody without the role fills the memory, and nothing is read for them.
func TestAReportOfSomebodyElseIsNotRead(t *testing.T) {
	c := open(t, Options{Write: true})
	form := "--x\r\nContent-Disposition: form-data; name=\"form\"\r\n\r\n%s\r\n--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nid\n1\n\r\n--x--\r\n"
	for token, want := range map[string]int{"": 401, lookToken: 403, decideToken: 403} {
		b := visit(t, c)
		if token != "" {
			b = as(t, c, token)
		}
		body := bytes.NewReader([]byte(fmt.Sprintf(form, "a token of nobody") + strings.Repeat("x", 1<<20)))
		r := httptest.NewRequest(http.MethodPost, "http://localhost:9470/reconcile", body)
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		b.do(r).is(want)
		if token != decideToken && body.Len() < 1<<20 {
			t.Errorf("%d bytes of %q were read", 1<<20-body.Len(), token)
		}
		if c.comparisons.places != 0 {
			t.Errorf("%q has a place", token)
		}
	}
	b := as(t, c, decideToken)
	b.prepare = func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }
	b.sendBody("multipart/form-data; boundary=x", []byte(fmt.Sprintf(form, c.formToken("session", b.cookies[cookieHere].Value)))).is(403).shows("another site")
}

func TestHostileReportsAreShownAsText(t *testing.T) {
	s := memstore.New(nil)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, decideToken)
	hostile := []string{script, "\u202eevil", "p\u0430ypal", `"><img src=x onerror=alert(1)>`, "{{.}}", "=HYPERLINK(1)"}
	content := "\ufeffid,state,note\r\n"
	for _, id := range hostile {
		content += `"` + strings.ReplaceAll(id, `"`, `""`) + `",` + script + strings.Repeat("W", 5000) + "," + strings.Repeat("x", 100_000) + "\r\n"
	}
	b.compared(c, content, "id-column", "id", "status-column", "state", "happened", "paid").is(200).shows("Nothing differs")
	b.compared(c, content, "id-column", "id").is(200).shows(script, `"\u202eevil"`, `"p\u0430ypal"`, "not_here 6").hides("\u202e")
	for _, f := range c.comparisons.latest()[0].found[crosscheck.NotHere] {
		if len(f.Line) > 0 || len(f.Status) > maxQuoted+10 {
			t.Errorf("%d bytes of the line are kept", len(f.Line)+len(f.Status))
		}
	}
	b.send(script+"\u202e.csv", "id\n1\n", "operation", "pay"+script).is(200)
	b.get("/reconcile").is(200).shows(script).hides("\u202e")
	b.get("/audit").is(200).hides("\u202e")

	// One key on thousands of lines, and more findings than fit.
	b.compared(c, "id\n"+strings.Repeat("a\n", 3000)+"b\n"+"b\n").is(200).shows("happened_twice 2", "and 2,995 more")
	var many strings.Builder
	many.WriteString("id\n")
	for i := range maxCompared + 500 {
		fmt.Fprintln(&many, i)
	}
	b.compared(c, many.String()).is(200).shows("not_here 1,500", "The first 1,000 of 1,500 are kept", "pay 0", "pay 49").hides("pay 50 ")
	b.follow("Next page").shows("pay 50", "First page").hides("pay 49 ")
}

func TestReportsOfTheOperator(t *testing.T) {
	file := filepath.Join(t.TempDir(), "charges.csv")
	c := open(t, Options{Reports: []Report{{"charges", file}, {"folder", filepath.Dir(file)}}})
	b := as(t, c, decideToken)
	try := func(report string) *browser {
		b.get("/reconcile").fill("/reconcile", "report", report, "operation", "pay").is(200) // without a file, and as a simple form
		x := c.comparisons.latest()[0]
		testenv.Await(t, "the comparison ends", func() bool { return !x.isWorking() })
		return b.get(b.at)
	}
	try("charges").shows("failed", "no such file")
	look := as(t, c, lookToken)
	look.get(b.at).shows("failed", "Somebody with the role decide sees why").hides("no such file", file)
	try("folder").shows("failed", "not a regular file")
	if err := os.WriteFile(file, []byte("id\nx\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	try("charges").shows("finished", "not_here 1", "pay x")
	if err := os.WriteFile(file, []byte("no\n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	try("charges").shows("failed", "it has none of the columns")
	if c.comparisons.places != 0 {
		t.Errorf("%d places are taken", c.comparisons.places)
	}
	for want, reports := range map[string][]Report{"the name of a report": {{"a b", "x"}}, "two reports": {{"a", "x"}, {"a", "y"}}, "has no File": {{"a", ""}}} {
		if _, err := New(Options{Stores: c.o.Stores, People: people(), Reports: reports}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// reconciled is a store with keys that a report decides, a console, and the comparison.
func reconciled(t *testing.T) (*memstore.Store, *Console, *browser, *logtest.Log) {
	t.Helper()
	s, log := memstore.New(nil), new(logtest.Log)
	lapse(t, s, "a", "b", "c", "lost", "gone")
	settle(t, s, claim(t, s, pay("aside"), once.Key{}, time.Hour), once.Parked, "by hand", "", "")
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true, Log: slog.New(slog.NewTextHandler(log, nil))})
	b := as(t, c, decideToken)
	b.compared(c, "id,charge\na,ch_1\nb,ch_2\nc,ch_3\naside,ch_4\n", covers()...).is(200).shows("6 keys differ", "It supports completing 4 and releasing 2")
	return s, c, b, log
}

func become(t *testing.T, s once.Store, ids ...string) (all string) {
	t.Helper()
	for _, id := range ids {
		all += get(t, s, keyRef{Key: pay(id)}).Status.String() + " "
	}
	return strings.TrimSpace(all)
}

func TestKeysAreSettledByAReport(t *testing.T) {
	s, c, b, log := reconciled(t)
	b.follow("Settle keys").is(200).shows("Complete 3 unknown keys (and 1 parked, see below)", "Release 2 unknown keys")
	b.fill("/reconcile/settle", "happened", "yes", "outcome", "line", "reason", "ticket 88").is(200).
		shows("3 keys, because the report has them, with the line of the report as outcome", "pay a", "line 2 of the report", "Becomes", "ticket 88").hides("Become free", "aside", "lost")
	if got := become(t, s, "a", "b", "c"); got != "unknown unknown unknown" {
		t.Fatalf("before the yes they are %s", got)
	}
	b.fill("/jobs").is(200)
	ended(t, c, 1)
	b.get("/job?number=1").shows("finished", "3 of 3 settled", "keys of pay, by the report charges.csv", "ticket 88").hides("messages of the outbox")
	if got := become(t, s, "a", "b", "c", "aside", "lost", "gone"); got != "done done done parked unknown unknown" {
		t.Errorf("they are %s", got)
	}
	rec := get(t, s, keyRef{Key: pay("b")})
	if out, err := s.Options().Sealing.Open(rec); err != nil || string(out.Body) != `{"id":"b","charge":"ch_2"}` || rec.Reason != "completed by dee: ticket 88 (line 3 of the report)" {
		t.Errorf("%s, %v, %q", out.Body, err, rec.Reason)
	}
	b.get("/jobs").shows("settle: keys of pay, by the report charges.csv, of the store shop")
	b.get("/audit").shows("began job 1: settle 3 keys", "job 1 finished: 3 of 3 keys were settled")
	if n := strings.Count(log.String(), `msg="console: audit" deed=completed by=dee store=shop`); n != 3 {
		t.Errorf("%d decisions are in the log", n)
	}

	// The rest, parked ones too, and without an outcome.
	b.get("/reconcile/settle?number=1").fill("/reconcile/settle", "happened", "yes", "outcome", "none", "missing", "yes", "complete", "yes", "parked", "yes", "reason", "r").
		shows("Become done 1 key", "with no outcome", "Become free 2 keys", "You assert", "the report is complete from 2001-01-01", "Stay as they are 3")
	b.fill("/jobs").is(200)
	ended(t, c, 2)
	if got := become(t, s, "aside", "lost", "gone"); got != "done absent absent" {
		t.Errorf("they are %s", got)
	}
	b.get("/job?number=2").shows("3 of 6", "Changed by others 3", "Asserted")
	b.get("/reconcile/settle?number=1").fill("/reconcile/settle", "happened", "yes", "outcome", "none", "reason", "r").shows("All 3 have changed").hides("Yes, settle")
}

func TestNothingIsReleasedWithoutACompleteReport(t *testing.T) {
	s := memstore.New(nil)
	lapse(t, s, "a", "lost")
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true})
	b := as(t, c, decideToken)
	all := covers()
	for name, test := range map[string]struct {
		content, want string
		form          []string
	}{
		"a key that is not known": {"id\na\nother\n", "each may be one that seems to be missing", all},
		"a line without a key":    {"id,x\na,1\n,2\n", "lines without an ID", append([]string{"skip-empty", "yes"}, all...)},
		"no margin":               {"id\na\n", "the margin is not given", append(all[:4:4], "id-column", "id")},
		"no column":               {"id\na\n", "the column with the IDs is not named", all[:6]},
	} {
		b.compared(c, test.content, test.form...)
		at := fmt.Sprint("/reconcile/settle?number=", c.comparisons.latest()[0].Number)
		b.get(at).is(200).shows("They cannot be released by this report", test.want)
		form := b.form("/reconcile/settle").values()
		form.Set("missing", "yes")
		form.Set("complete", "yes")
		form.Set("reason", "r")
		if b.post(at, form).is(422).shows(test.want); b.form("/jobs") != nil {
			t.Errorf("%s: it can be confirmed", name)
		}
	}
	b.compared(c, "id\na\n", "id-column", "id") // without the time
	b.shows("completing 1").hides("releasing")

	b.compared(c, "id\na\n", all...)
	settle := fmt.Sprint("/reconcile/settle?number=", c.comparisons.latest()[0].Number)
	for want, form := range map[string][]string{
		"assert that it is complete":      {"missing", "yes", "reason", "r"},
		"Give a reason":                   {"missing", "yes", "complete", "yes"},
		"Choose what is to be settled":    {"reason", "r", "complete", "yes"},
		"Choose what duplicates":          {"happened", "yes", "outcome", "x", "reason", "r"},
		"but only 360 are stored":         {"happened", "yes", "reason", strings.Repeat("r", 361)},
		"The rate is x":                   {"happened", "yes", "reason", "r", "rate", "x"},
		"The limit is 0":                  {"happened", "yes", "reason", "r", "limit", "0"},
		"the report is complete from":     {"missing", "yes", "complete", "yes", "reason", "r"},
		"1 more can be settled by this":   {"happened", "yes", "missing", "yes", "complete", "yes", "reason", "r", "limit", "1"},
		"at most 0.5 per second":          {"happened", "yes", "reason", "r", "rate", "0.5"},
		"Become done 1 key, because the ": {"happened", "yes", "reason", "r"},
	} {
		b.get(settle).fill("/reconcile/settle", form...).shows(want)
	}
	if got := become(t, s, "a", "lost"); got != "unknown unknown" {
		t.Errorf("they are %s", got)
	}
}

// Two people settle by one report at once: each key is decided once, and both are told.
func TestTwoPeopleSettleByOneReport(t *testing.T) {
	s := memstore.New(nil)
	var ids []string
	content := "id\n"
	for i := range 60 {
		ids = append(ids, fmt.Sprint("k", i))
		content += ids[i] + "\n"
	}
	lapse(t, s, ids...)
	var log logtest.Log
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	first, second := as(t, c, decideToken), as(t, c, adminToken)
	first.compared(c, content)
	for _, b := range []*browser{first, second} {
		b.get("/reconcile/settle?number=1").fill("/reconcile/settle", "happened", "yes", "outcome", "none", "reason", "the same").is(200).shows("Yes, settle 60")
	}
	var both sync.WaitGroup
	for _, b := range []*browser{first, second} {
		both.Add(1)
		go func() {
			defer both.Done()
			b.post("/jobs", b.form("/jobs").values())
		}()
	}
	both.Wait()
	changed, moved := 0, 0
	for n := 1; n <= 2; n++ {
		j := ended(t, c, n)
		changed += j.tally.Changed
		moved += j.tally.Moved
	}
	if n := strings.Count(log.String(), "deed=completed"); changed != 60 || moved != 60 || n != 60 {
		t.Errorf("%d changed, %d left, %d in the log", changed, moved, n)
	}
}

func TestAKeyThatChangedIsLeftAlone(t *testing.T) {
	s, c, b, _ := reconciled(t)
	b.get("/reconcile/settle?number=1").fill("/reconcile/settle", "happened", "yes", "outcome", "none", "missing", "yes", "complete", "yes", "reason", "r").shows("Become done 3", "Become free 2")
	// Between the page and the yes, one is decided by hand, one is put aside for a person
	// in the attempt that it was in, and one is at work again as a new attempt.
	aside := get(t, s, keyRef{Key: pay("b")})
	if err := s.Settle(t.Context(), once.Settlement{Fence: once.Fence{Key: pay("b"), Owner: aside.Owner, Attempt: aside.Attempt}, Status: once.Parked, Reason: "the amount differs",
		KeepOutcome: time.Hour, KeepKey: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := once.MarkNotDone(t.Context(), s, get(t, s, keyRef{Key: pay("a")}), "somebody else"); err != nil {
		t.Fatal(err)
	}
	lost := get(t, s, keyRef{Key: pay("lost")})
	if _, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: pay("lost"), Owner: [16]byte{9}, Attempt: lost.Attempt}, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	b.fill("/jobs").is(200)
	ended(t, c, 1)
	b.get("/job?number=1").shows("2 of 5", "Changed by others 3")
	if got := become(t, s, "a", "b", "c", "lost", "gone"); got != "absent parked done running absent" {
		t.Errorf("they are %s", got)
	}
}

// settlesSome fails after some settlements.
type settlesSome struct {
	once.Store
	mu      sync.Mutex
	left    int
	failure error
	held    chan struct{} // nil, or closed when settlements may go on
	at      chan struct{} // gets a value for each settlement
}

func (s *settlesSome) Settle(ctx context.Context, set once.Settlement) error {
	s.mu.Lock()
	s.left--
	fails := s.left < 0
	s.mu.Unlock()
	if s.at != nil {
		s.at <- struct{}{}
		<-s.held
	}
	if fails {
		if s.failure == nil {
			panic("boom")
		}
		return s.failure
	}
	return s.Store.Settle(ctx, set)
}

func (s *settlesSome) Unwrap() once.Store { return s.Store }

func TestAStoreThatFailsWhileKeysAreSettled(t *testing.T) {
	for _, failure := range []error{errors.New("connection reset"), nil} {
		inner := memstore.New(nil)
		lapse(t, inner, "a", "b", "c")
		s := &settlesSome{Store: inner, left: 1, failure: failure}
		c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true})
		b := as(t, c, decideToken)
		b.compared(c, "id\na\nb\nc\n")
		b.get("/reconcile/settle?number=1").fill("/reconcile/settle", "happened", "yes", "outcome", "none", "reason", "r").fill("/jobs")
		j := ended(t, c, 1)
		b.get("/job?number=1").shows("failed", "1 of 3", "Not settled 2", "The key that it was at may be changed already")
		if j.tally.Changed != 1 || become(t, inner, "a", "b", "c") != "done unknown unknown" {
			t.Errorf("%+v, %s", j.tally, become(t, inner, "a", "b", "c"))
		}
		// What is left can be settled by another job.
		s.mu.Lock()
		s.left = 10
		s.mu.Unlock()
		b.follow("See what is left").fill("/reconcile/settle", "happened", "yes", "outcome", "none", "reason", "r").shows("Stay as they are 1").fill("/jobs")
		ended(t, c, 2)
		if got := become(t, inner, "a", "b", "c"); got != "done done done" {
			t.Errorf("they are %s", got)
		}
	}
}

func TestSettlingIsStopped(t *testing.T) {
	inner := memstore.New(nil)
	lapse(t, inner, "a", "b", "c")
	s := &settlesSome{Store: inner, left: 10, held: make(chan struct{}), at: make(chan struct{}, 3)}
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Write: true})
	b := as(t, c, decideToken)
	b.compared(c, "id\na\nb\nc\n")
	b.get("/reconcile/settle?number=1").fill("/reconcile/settle", "happened", "yes", "outcome", "none", "reason", "r").fill("/jobs").shows("running")
	<-s.at
	b.fill("/job").shows("It ends after the key that it is at")
	close(s.held)
	ended(t, c, 1)
	b.get("/job?number=1").shows("stopped", "1 of 3", "Stopped by dee")
	if got := become(t, inner, "a", "b", "c"); got != "done unknown unknown" {
		t.Errorf("they are %s", got)
	}
}

// lists fails, panics or waits when it lists.
type lists struct {
	*memstore.Store
	how func(context.Context) error
}

func (s lists) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if err := s.how(ctx); err != nil {
		return once.RecordPage{}, err
	}
	return s.Store.List(ctx, q)
}

func (s lists) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if err := s.how(ctx); err != nil {
		return once.Record{}, err
	}
	return s.Store.Get(ctx, k)
}

func (s lists) Unwrap() once.Store { return s.Store }

func TestAComparisonEndsWithItsStore(t *testing.T) {
	for want, how := range map[string]func(context.Context) error{"connection reset": func(context.Context) error { return errors.New("connection reset") },
		"the store panicked": func(context.Context) error { panic("boom") }} {
		for _, open := range []bool{false, true} { // in the goroutine of the comparison, and in one that reads
			var how = how
			inner := memstore.New(nil)
			if open {
				of := how
				listed := false
				how = func(ctx context.Context) error {
					if !listed {
						listed = true
						return nil
					}
					return of(ctx)
				}
			}
			c := openWith(t, lists{inner, how})
			b := as(t, c, decideToken)
			b.compared(c, "id\na\n").shows("failed", want).hides("boom")
			if c.comparisons.places != 0 {
				t.Error("the place is not free")
			}
		}
	}
}

// openWith opens a console of a store that the overview does not look at meanwhile.
func openWith(t *testing.T, s once.Store) *Console {
	t.Helper()
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: memstore.New(nil)}}, Write: true})
	c.end()
	c.running.Wait()
	c.o.Stores[0].Store = s
	return c
}

func TestComparisonsAreStoppedAndBounded(t *testing.T) {
	waits := lists{memstore.New(nil), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	c := openWith(t, waits)
	b := as(t, c, decideToken)
	for range maxComparing {
		b.send("a.csv", "id\na\n", "operation", "pay").is(200).shows("running", "Stop")
	}
	b.send("a.csv", "id\na\n", "operation", "pay").is(503).shows("Other reports are being compared")
	as(t, c, lookToken).get("/reconcile/result?number=1").is(200).shows("running").hides("Stop")
	b.get("/reconcile/result?number=1").fill("/reconcile/stop").is(200)
	x := c.comparisons.numbered(1)
	testenv.Await(t, "it ends", func() bool { return !x.isWorking() })
	b.get("/reconcile/result?number=1").shows("stopped", "Stopped by dee").hides("Settle")
	b.get("/audit").shows("stopped comparison 1")
	c.Close()
	if x := c.comparisons.numbered(2); x.isWorking() || x.stopped != "the end of this console" || c.comparisons.places != 0 {
		t.Errorf("%+v, %d places", x.state, c.comparisons.places)
	}
	b.send("a.csv", "id\na\n", "operation", "pay").is(503)

	var all comparisons
	var last *comparison
	for range maxComparisons + 5 {
		last, _ = all.begin(asked{}, "dee", nil, time.Now())
		last.ended = time.Now()
	}
	if n := len(all.latest()); n != maxComparisons || all.numbered(1) != nil {
		t.Errorf("%d are kept", n)
	}
	for _, x := range all.latest()[1:] {
		x.kept = maxKept / 3
	}
	all.shrink(last)
	if n := len(all.latest()); n != 4 || all.latest()[0] != last {
		t.Errorf("%d are kept", n)
	}
}
