//go:build linux

package docs

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// rule applies to commands that begin with its text, as written in the
// document. Of several rules, the longest applies. A command without a rule runs
// in the checkout, with the names of the world substituted, and must exit with
// 0.
type rule struct {
	command string
	why     string // if something else is done than to run it and to expect 0

	status int    // to expect
	run    string // in its place
	listed bool   // it runs tests, which are only looked for: make test runs them
	serves bool   // it runs until it is interrupted: that happens when it is ready
	there  string // the folder of the world in which it runs
	then   string // runs after it; %s is its fourth word
	says   string // what it says has to match this
	skip   bool   // it is not run, as why says
}

var rules = []rule{
	{command: "make test-models", run: "make -n test-models", why: "it searches for a minute, and may install Spin"},
	{command: "make test", run: "make -n test", why: "it would run this test"},
	{command: "make check", run: "make -n check", why: "it would test everything that needs no server"},
	{command: "make bench", run: "make -n bench", why: "it measures for ten minutes"},
	{command: "go install ./cmd/oncevet", run: "go build -o /dev/null ./cmd/oncevet", why: "it would install it for the user"},
	{command: "go vet -vettool=", run: "go run ./cmd/oncevet -test=false ./examples/orders", why: "oncevet is not installed, and all packages take long"},
	{command: "go run ./examples/quickstart", skip: true, why: "its own test runs it"},
	{command: "curl -i localhost:8080/orders", skip: true, why: "the test of examples/quickstart sends the request"},
	{command: "go get github.com/effectively-once/once", skip: true, why: "integration/cmd/release gets the modules, as they will be released"},
	{command: "for module in once ", there: "program", then: "go mod tidy && go vet .", why: "for a program outside the checkout"},
	{command: "once context set ", then: "once migrate status --target %s"},
	{command: "once doctor --config "},
	{command: "once doctor --broker ", skip: true, why: "there is no such broker; tests of the command have one"},
	{command: "once doctor", status: 1, why: "synchronous_commit is off, as docs/command.md shows it"},
	{command: "once serve ", serves: true},
	{command: "nats stream get ", skip: true, why: "the command of NATS is not among the test's programs; tests of the store read this header"},
	{command: "once unknown ask ", skip: true, why: "nobody answers at these URLs; a script of the command asks"},
	{command: "once reconcile ", skip: true, why: "the provider's report is not there; a script of the command has one"},
	{command: "once console ", skip: true, why: "it serves until it is interrupted; tests of the command start it"},
	{command: "once demo --console", skip: true, why: "it runs until it is interrupted; tests of the command start it"},
	{command: "go run ./cmd/once demo --console", skip: true, why: "as above"},
	{command: "once prove ", skip: true, why: "the program is not there; tests of the command prove one"},
	{command: "once migrate sql", then: "once migrate sql --from 0 | grep 'CREATE TABLE'"},
	{command: "source <(once completion bash)", then: "complete -p once"},
	{command: "echo \"whsec_$(openssl", says: `^whsec_[0-9A-Za-z+/]{43}=\n$`},
	{command: "go run ./integration/cmd/servers -- go test", listed: true, why: "they take long"},
	{command: "ONCE_SOAK=1m go run ./integration/cmd/servers -- go test", listed: true, why: "a soak"},
	{command: "ONCE_TEST_SQLSERVER=", listed: true, why: "there is no SQL Server"},
}

// statements lists the pages whose SQL runs in a test, or not at all, and why.
// All other SQL runs on the PostgreSQL of the world, in one transaction per
// block that is rolled back.
var statements = []elsewhere{
	{page: "outbox-row.md", begins: "INSERT INTO ", file: "integration/sqlstore/outbox_test.go", test: "TestRowsOfOtherProgramsArePublished"},
	{page: "outbox-row.md", begins: "NOTIFY ", file: "integration/publish/foreign_test.go", test: "TestNotifyOfOthers"},
	{page: "outbox-row.md", begins: "SELECT pg_notify", file: "integration/publish/foreign_test.go", test: "TestNotifyOfOthers"},
	{page: "sqlserver.md", why: "there is no SQL Server"},
}

type elsewhere struct {
	page       string // the end of its path
	begins     string // the block does; empty: all
	file, test string
	why        string // without a test
}

func (e elsewhere) String() string { return fmt.Sprintf("%s, %q", e.page, e.begins) }

func (e elsewhere) has(f fence) bool {
	return strings.HasSuffix(f.page, "/"+e.page) && strings.HasPrefix(strings.Join(f.text, "\n"), e.begins)
}

// TestCommandsRun runs every command and SQL statement of the documents in a
// world that has what they need, with one shell per page.
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
	t.Run("wrong ones", w.testWrongOnes)
	seen := make(map[string]bool) // beginnings of commands, pages with SQL, names
	commands, passed := 0, 0
	for _, page := range order {
		t.Run(page, func(t *testing.T) {
			passed++
			s := w.shell(t)
			for _, f := range byPage[page] {
				w.mustRun(t, s, "cd '"+w.checkout+"'") // each block begins there
				commands += w.runBlock(t, s, f, seen)
			}
		})
	}
	if passed < len(order) {
		return // -run has chosen some of them
	}
	if commands < 50 {
		t.Errorf("only %d commands were found: the test reads the wrong blocks", commands)
	}
	for _, unused := range w.unused(seen) {
		t.Error(unused)
	}
}

// runBlock runs a block and returns the number of commands.
func (w *world) runBlock(t *testing.T, s *shell, f fence, seen map[string]bool) int {
	t.Helper()
	w.see(strings.Join(f.text, "\n"), seen)
	if f.kind == "sql" {
		if e := elsewhereFor(f); e != nil {
			seen[e.String()] = true
		}
		if err := w.runSQL(t, f); err != nil {
			t.Errorf("%s:%d: %v:\n%s", f.page, f.line, err, strings.Join(f.text, "\n"))
		}
		return 0
	}
	all, err := f.commands()
	must(t, err)
	for _, c := range all {
		begun := time.Now()
		r := ruleFor(c.text)
		seen[r.command] = true
		if err := w.runCommand(t, s, c, r); err != nil {
			t.Errorf("%s\n%v", c, err)
		} else {
			t.Logf("%v %s", time.Since(begun).Round(time.Millisecond), c)
		}
	}
	return len(all)
}

// unused returns entries of the lists that do not occur in the documents.
func (w *world) unused(seen map[string]bool) (all []string) {
	for _, r := range rules {
		if !seen[r.command] {
			all = append(all, fmt.Sprintf("no document has a command that begins with %q: take it out of rules", r.command))
		}
	}
	for _, s := range statements {
		if !seen[s.String()] {
			all = append(all, "no document has SQL of "+s.String()+": take it out of statements")
		}
	}
	w.see(w.configured, seen)
	for _, p := range w.names() {
		if !seen[p.document] {
			all = append(all, fmt.Sprintf("no document has %q: take it out of names", p.document))
		}
	}
	return all
}

// see records which of the names occur in a text.
func (w *world) see(text string, seen map[string]bool) {
	for _, p := range w.names() {
		seen[p.document] = seen[p.document] || strings.Contains(text, p.document)
	}
}

func elsewhereFor(f fence) *elsewhere {
	for i := range statements {
		if statements[i].has(f) {
			return &statements[i]
		}
	}
	return nil
}

func ruleFor(text string) (found rule) {
	for _, r := range rules {
		if strings.HasPrefix(text, r.command) && len(r.command) > len(found.command) {
			found = r
		}
	}
	return found
}

func (w *world) runCommand(t *testing.T, s *shell, c command, r rule) error {
	t.Helper()
	switch {
	case r.why == "" && (r.skip || r.run != "" || r.listed || r.status != 0):
		return errors.New("is not run as it stands, or does not end with 0: say why in its rule")
	case r.skip:
		t.Logf("%s: not run: %s", c, r.why)
		return nil
	}
	if r.run == "" && r.then == "" && r.says == "" && (strings.Contains(c.text, "<(") || strings.Contains(c.text, "$(")) {
		return errors.New("an error of the command in parentheses would not be seen: give it a rule, with then or says")
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
	if r.then != "" { // on a line of its own, as this one may end with a comment
		text = "{ " + text + "\n} && " + strings.ReplaceAll(r.then, "%s", strings.Fields(c.text + " . . .")[3])
	}
	if r.there != "" {
		text = "(cd '" + filepath.Join(w.dir, r.there) + "' && " + text + "\n)"
	}
	status, said, err := s.run(t, text, until)
	line := missing(c.shown, said)
	switch {
	case err != nil:
		return err
	case status != r.status:
		return fmt.Errorf("was run as\n%s\nand ends with %d, not %d:\n%s", text, status, r.status, said)
	case !regexp.MustCompile(r.says).MatchString(said):
		return fmt.Errorf("says\n%s\nwhich does not match %s", said, r.says)
	case line != "":
		return fmt.Errorf("says\n%s\nin which there is no %q", said, line)
	case r.listed:
		return everyTest(text, said)
	}
	return nil
}

// testWrongOnes checks that errors in a document are found.
func (w *world) testWrongOnes(t *testing.T) {
	s := w.shell(t)
	for _, c := range []struct{ text, shown, want string }{
		{"once keys get pay order-1", "", "ends with 4, not 0"},
		{"once keys list --nothing", "", "ends with 2, not 0"},
		{"once outbox discard --id o3 --reason x", "", "ends with"},
		{"once consumers list", "NAME  SINCE\na  b", `there is no "NAME  SINCE"`},
		{"once doctor", "unsafe fsync-off: fsync is off.", "in which there is no"},
		{"once doctor --fail-on nothing", "", "ends with 2, not 1"},
		{"source <(once completion csh)", "", "would not be seen"},
		{"once keys list | nowhere", "", "ends with 127, not 0"},
		{"once keys get pay order-1 | cat", "", "ends with 4, not 0"},
		{"once serve --config none.toml", "", "by itself, with 2"},
		{"go run ./cmd/twice", "", "ends with 1, not 0"},
		{"go run ./integration/cmd/servers -- go test -run 'TestUnguarded|TestNowhere' ./integration/lostreply", "", "no test TestNowhere"},
		{"go run ./integration/cmd/servers -- go test -pace ./integration/lostreply", "", "ends with"},
		{"once context set prod sqlite:/var/lib/shop/none.db", "", "ends with"},
	} {
		text := command{page: "here", line: 1, text: c.text, shown: strings.Split(c.shown, "\n")}
		if err := w.runCommand(t, s, text, ruleFor(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
	if err := w.runCommand(t, s, command{text: "reboot"}, rule{command: "reboot", skip: true}); err == nil {
		t.Error("a command is left out, and nobody says why")
	}
	if err := w.runSQL(t, fence{text: []string{"INSERT INTO once_outbox (nothing) VALUES (1);"}}); err == nil {
		t.Error("SQL that is wrong is taken for right")
	}
	if all := w.unused(map[string]bool{}); len(all) < len(rules)+len(statements) {
		t.Errorf("if nothing is named, the lists have only %q too many", all)
	}
}

var address = regexp.MustCompile(`"msg":"serving".*"address":"([^"]+)"`)

// ready has nothing against it that the service that says so is stopped, when it works.
func ready(said string) error {
	m := address.FindStringSubmatch(said)
	if m == nil {
		return errors.New("it does not serve yet")
	}
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get("http://" + m[1] + "/readyz")
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

// listing returns the command that lists the tests that a command runs.
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

// everyTest checks that each part of a pattern matches a test.
func everyTest(text, said string) error {
	pattern := regexp.MustCompile(`-list ('[^']+'|\S+)`).FindStringSubmatch(text)[1]
	for part := range strings.SplitSeq(strings.Trim(pattern, "'"), "|") {
		fits := regexp.MustCompile(part).MatchString
		if !slices.ContainsFunc(strings.Split(said, "\n"), func(line string) bool { return strings.HasPrefix(line, "Test") && fits(line) }) {
			return fmt.Errorf("there is no test %s among\n%s", part, said)
		}
	}
	return nil
}

// runSQL runs the SQL of a block, or checks that the test that does so reads the
// page.
func (w *world) runSQL(t *testing.T, f fence) error {
	t.Helper()
	switch e := elsewhereFor(f); {
	case e == nil:
	case e.test == "":
		t.Logf("%s:%d: not run: %s", f.page, f.line, e.why)
		return nil
	default:
		source := read(t, filepath.Join(root, e.file))
		if !strings.Contains(source, "/"+f.page+`"`) || !strings.Contains(source, "\nfunc "+e.test+"(") {
			return fmt.Errorf("%s has no %s that reads the page", e.file, e.test)
		}
		return nil
	}
	w.reset(t)
	text := w.here(strings.Join(f.text, "\n"))
	if m := droppedSlot.FindStringSubmatch(text); m != nil { // the slot of the example: without a place in the log, it keeps nothing
		w.exec(t, "SELECT pg_create_physical_replication_slot('"+m[1]+"')")
		defer w.exec(t, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+m[1]+"'")
	}
	w.exec(t, "BEGIN")
	defer w.exec(t, "ROLLBACK")
	_, err := w.conn.PgConn().Exec(t.Context(), text).ReadAll()
	return err
}

var droppedSlot = regexp.MustCompile(`pg_drop_replication_slot\('(\w+)'\)`)
