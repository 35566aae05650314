//go:build linux

package docs

import (
	"errors"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// rule is for the commands that begin with its text, as the document has it; of several, the longest is used. A command
// without a rule is run as it stands, with the names of the world in it, in the checkout, and has to end with 0.
type rule struct {
	command string
	why     string // in words, where something else is done than to run it and to expect 0

	status int    // to expect
	run    string // in its place
	listed bool   // it runs tests, which are only looked for: make test runs them
	serves bool   // it runs until it is interrupted: that happens when it is ready
	there  string // the folder of the world in which it runs
	then   string // runs after it; %s is its fourth word
	skip   bool   // it is not run
}

var rules = []rule{
	{command: "make test", run: "make -n test", why: "it would run this test"},
	{command: "go mod edit -require=", there: "program", then: "go mod tidy && go vet .", why: "for a program outside the checkout"},
	{command: "once context set ", then: "once migrate status --target %s"},
	{command: "once doctor", status: 1, why: "synchronous_commit is off, as docs/command.md shows it"},
	{command: "once serve ", serves: true},
	{command: "go run ./integration/cmd/servers -- go test", listed: true, why: "they take long"},
	{command: "ONCE_SOAK=1m go run ./integration/cmd/servers -- go test", listed: true, why: "a soak"},
	{command: "ONCE_TEST_SQLSERVER=", listed: true, why: "there is no SQL Server"},
}

// statements says of which pages the SQL is run elsewhere, or not at all: by a test, or why not. All other SQL runs on the
// PostgreSQL of the world.
var statements = []struct{ page, file, test, why string }{
	{page: "docs/outbox-row.md", file: "integration/sqlstore/outbox_test.go", test: "TestRowsOfOthers"},
	{page: "docs/publishing.md", file: "integration/publish/foreign_test.go", test: "TestNotifyOfOthers"},
	{page: "docs/sqlserver.md", why: "there is no SQL Server"},
}

// TestCommandsRun runs every command and every SQL statement of the documents: in a world that has what they need, one
// shell for each page.
func TestCommandsRun(t *testing.T) {
	byPage, order := make(map[string][]fence), []string(nil)
	for _, f := range fences(t) {
		if slices.Contains(typed, f.kind) {
			if byPage[f.page] == nil {
				order = append(order, f.page)
			}
			byPage[f.page] = append(byPage[f.page], f)
		}
	}
	w := newWorld(t)
	used := make(map[string]bool)
	commands, passed := 0, 0
	for _, page := range order {
		t.Run(page, func(t *testing.T) {
			passed++
			s := w.shell(t)
			for _, f := range byPage[page] {
				if f.kind == "sql" {
					w.runSQL(t, f, used)
					continue
				}
				all, err := f.commands()
				must(t, err)
				w.mustRun(t, s, "cd '"+w.checkout+"'") // each block begins there
				for _, c := range all {
					commands++
					w.runCommand(t, s, c, used)
				}
			}
		})
	}
	if passed < len(order) {
		return // -run has chosen some of them
	}
	if commands < 50 {
		t.Errorf("only %d commands were found: the test reads the wrong blocks", commands)
	}
	w.checkUsed(t, used)
}

// checkUsed finds what the lists name and the documents do not.
func (w *world) checkUsed(t *testing.T, used map[string]bool) {
	t.Helper()
	for _, r := range rules {
		if !used[r.command] {
			t.Errorf("no document has a command that begins with %q: take it out of rules", r.command)
		}
	}
	for _, s := range statements {
		if !used[s.page] {
			t.Errorf("%s has no SQL: take it out of statements", s.page)
		}
	}
	for _, p := range w.names() {
		if !w.seen[p.document] {
			t.Errorf("no document has %q: take it out of names", p.document)
		}
	}
}

func ruleFor(c command) (found rule) {
	for _, r := range rules {
		if strings.HasPrefix(c.text, r.command) && len(r.command) > len(found.command) {
			found = r
		}
	}
	return found
}

func (w *world) runCommand(t *testing.T, s *shell, c command, used map[string]bool) {
	t.Helper()
	r := ruleFor(c)
	used[r.command] = true
	if r.skip {
		t.Logf("%s: not run: %s", c, r.why)
		return
	}
	if strings.HasPrefix(c.text, "once ") {
		w.reset(t)
	}
	text := w.here(c.text)
	var until func(string) error
	switch {
	case r.run != "":
		text = r.run
	case r.listed:
		text = listing(t, text)
	case r.serves:
		until = ready
	}
	if r.then != "" {
		text += " && " + strings.ReplaceAll(r.then, "%s", strings.Fields(c.text + " . . .")[3])
	}
	if r.there != "" {
		text = "(cd '" + filepath.Join(w.dir, r.there) + "' && " + text + ")"
	}
	begun := time.Now()
	status, said := s.run(t, text, until)
	t.Logf("%v %s", time.Since(begun).Round(time.Millisecond), c)
	if status != r.status {
		t.Errorf("%s\nwas run as\n%s\nexit status %d, want %d:\n%s", c, text, status, r.status, said)
		return
	}
	if line := missing(c.shown, said); line != "" {
		t.Errorf("%s\nsays\n%s\nin which there is no %q", c, said, line)
	}
	if r.listed {
		everyTest(t, c, text, said)
	}
}

var address = regexp.MustCompile(`"msg":"serving".*"address":"([^"]+)"`)

// ready has nothing against it that the service that says so is stopped, when it works.
func ready(said string) error {
	m := address.FindStringSubmatch(said)
	if m == nil {
		return errors.New("it does not serve yet")
	}
	answer, err := http.Get("http://" + m[1] + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

var (
	testCommand = regexp.MustCompile(`(?s)^.*\bgo test( .*)$`)
	testFlags   = regexp.MustCompile(` (-race|-v|-count=\d+|-timeout \S+)\b`)
	testPattern = regexp.MustCompile(` -run ('[^']+'|\S+)`)
)

// listing is the command that lists the tests which a command runs.
func listing(t *testing.T, text string) string {
	t.Helper()
	m := testCommand.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s runs no tests", text)
	}
	flags := testFlags.ReplaceAllString(m[1], "")
	if testPattern.MatchString(flags) {
		return "go test" + testPattern.ReplaceAllString(flags, " -list $1")
	}
	return "go test -list ." + flags
}

// everyTest makes sure that each part of a pattern has found a test.
func everyTest(t *testing.T, c command, text, said string) {
	t.Helper()
	pattern := regexp.MustCompile(`-list ('[^']+'|\S+)`).FindStringSubmatch(text)[1]
	for part := range strings.SplitSeq(strings.Trim(pattern, "'"), "|") {
		fits := regexp.MustCompile(part).MatchString
		if !slices.ContainsFunc(strings.Split(said, "\n"), func(line string) bool { return strings.HasPrefix(line, "Test") && fits(line) }) {
			t.Errorf("%s: there is no test %s among\n%s", c, part, said)
		}
	}
}

// runSQL runs the SQL of a block, or makes sure that the test that does so reads the page.
func (w *world) runSQL(t *testing.T, f fence, used map[string]bool) {
	t.Helper()
	used[f.page] = true
	for _, s := range statements {
		if s.page != f.page {
			continue
		}
		if s.test == "" {
			t.Logf("%s:%d: not run: %s", f.page, f.line, s.why)
		} else if source := read(t, filepath.Join(root, s.file)); !strings.Contains(source, "/"+f.page) || !strings.Contains(source, "func "+s.test+"(") {
			t.Errorf("%s has no %s that reads %s", s.file, s.test, f.page)
		}
		return
	}
	w.reset(t)
	text := w.here(strings.Join(f.text, "\n"))
	if m := droppedSlot.FindStringSubmatch(text); m != nil { // the slot of the example: without a place in the log, it keeps nothing
		w.exec(t, "SELECT pg_create_physical_replication_slot('"+m[1]+"')")
		defer w.exec(t, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+m[1]+"'")
	}
	if _, err := w.conn.PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
		t.Errorf("%s:%d: %v:\n%s", f.page, f.line, err, text)
	}
}

var droppedSlot = regexp.MustCompile(`pg_drop_replication_slot\('(\w+)'\)`)
