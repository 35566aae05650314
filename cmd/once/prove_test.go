package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/prove"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// proof is the end of once prove.
type proof struct {
	prove.Report
	exit         int
	said, output string // standard error, and that of the program
}

// markedFile is an SQLite file with tables, which is marked for tests.
func markedFile(t *testing.T) (from string) {
	t.Helper()
	from = "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	mark(t, from, true)
	return from
}

func mark(t *testing.T, from string, create bool) {
	t.Helper()
	at, err := target.Open(t.Context(), from, &target.Options{Create: create})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if at.Tables != nil {
		if err := at.Tables.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := prove.SetMark(t.Context(), at, "ann"); err != nil {
		t.Fatal(err)
	}
}

// shopArgs are the arguments that prove the shop of the tests, with something wrong.
func shopArgs(wrong string, more ...string) []string {
	return append(append([]string{"--request", "POST /orders", "--body", `{"item":"{{id}}"}`}, more...),
		"--", "proved-shop", "--db", "{{store}}", "--listen", "{{listen}}", "--wrong", wrong)
}

// proved runs once prove on a store.
func proved(t *testing.T, from string, args ...string) (p proof) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "output")
	cmd, temp := command(t, "once", append([]string{"prove", "--url", from, "-o", "json", "--log", log}, args...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	output, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		p.exit = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if len(output) > 0 {
		if err := json.Unmarshal(output, &p.Report); err != nil {
			t.Fatalf("%v in %s", err, output)
		}
	}
	written, _ := os.ReadFile(log)
	p.said, p.output = said.String(), string(written)
	wantEmpty(t, temp)
	return p
}

// broken are the laws with findings.
func (p proof) broken() []string {
	laws := map[string]bool{}
	for _, f := range p.Findings {
		laws[f.Law] = true
	}
	return slices.Sorted(maps.Keys(laws))
}

const countOrders, countInvoices = "orders=SELECT item, count(*) FROM orders GROUP BY item", "invoices=SELECT item, count(*) FROM invoices GROUP BY item"

// small is a proof that takes a second or two.
var small = []string{"--requests", "40", "--kills", "5", "--cuts", "4", "--swallowed", "4", "--lost", "6"}

func with(more ...string) []string { return append(slices.Clone(small), more...) }

// wantAdded checks that each line of a report adds up, and that the faults are those that were asked for in each round.
func wantAdded(t *testing.T, p proof) {
	t.Helper()
	for _, s := range p.Sums() {
		sum := 0
		for _, part := range s.Parts {
			sum += part.N
		}
		if len(s.Parts) > 0 && sum != s.Total {
			t.Errorf("%s: %d %s", s.Name, s.Total, s.Text())
		}
	}
	rounds := p.Requests.Sent / 40
	if rounds == 0 || p.Requests.Sent != 40*rounds || p.Faults.Kills != 5*rounds || p.Attempts.Lost != 6*rounds || p.Answers.First != 40*rounds {
		t.Errorf("%+v %+v %+v", p.Requests, p.Faults, p.Attempts)
	}
	for _, e := range p.Effects {
		if e.Accepted != p.Requests.Accepted {
			t.Errorf("%+v, of %d requests", e, p.Requests.Accepted)
		}
	}
}

// wantCounted checks that each effect that is missing or that happened again is a
// finding, and that effects are missing or happened again.
func wantCounted(t *testing.T, p proof, missing bool) {
	t.Helper()
	twice, none := 0, 0
	for _, e := range p.Effects {
		twice, none = twice+e.Twice, none+e.Missing
	}
	found := p.Broken(prove.OneEffect)
	if found != twice+none || (found > 0) && (none > 0) != missing {
		t.Errorf("%d findings about effects, and %d happened again, %d are missing: %+v", found, twice, none, p.Effects)
	}
}

// A program that is right passes, and the lines of its report add up.
func TestARightProgramIsProved(t *testing.T) {
	p := proved(t, markedFile(t), shopArgs("", with("--count", countOrders, "--count", countInvoices)...)...)
	if p.exit != exitOK || !p.Right() || len(p.Effects) != 2 {
		t.Fatalf("exit %d: %+v\n%s", p.exit, p.Report, p.said)
	}
	wantAdded(t, p)
	for _, k := range p.Keys {
		if k.States["done"] != 40 {
			t.Errorf("%+v", k)
		}
	}
}

// On a server, connections are broken as well.
func TestARightProgramIsProvedOnServers(t *testing.T) {
	for name, fresh := range servers {
		t.Run(name, func(t *testing.T) {
			from := fresh(t)
			place, err := target.PlaceOf(from)
			if err != nil {
				t.Fatal(err)
			}
			if !place.Passes {
				t.Skip("it has no port for TCP")
			}
			mark(t, from, false)
			u, err := url.Parse(from)
			if err != nil {
				t.Fatal(err)
			}
			table, args := "orders", []string(nil)
			if schema := u.Query().Get("schema"); schema != "" {
				table, args = schema+".orders", []string{"--schema", schema}
			}
			count := "orders=SELECT item, count(*) FROM " + table + " GROUP BY item"
			p := proved(t, from, append(shopArgs("", with("--count", count)...), args...)...)
			if p.exit != exitOK || !p.Right() {
				t.Fatalf("exit %d: %+v\n%s\n%s", p.exit, p.Report, p.said, p.output)
			}
			wantAdded(t, p)
			if f := p.Faults; f.Cuts != 4 || f.Connections == 0 || f.Swallowed+f.RepliesNotMet != 4 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// Stores without tables have the mark and broken connections too, and a command counts the effects in them.
func TestProgramsAreProvedOnStoresWithoutTables(t *testing.T) {
	for name, mistake := range map[string]string{"redis": "key per attempt", "nats": "no key"} {
		t.Run(name, func(t *testing.T) {
			from := keyStores[name](t)
			u, err := url.Parse(from)
			if err != nil {
				t.Fatal(err)
			}
			of := []string{"--prefix", u.Query().Get("prefix")}
			if p := proved(t, from, shopArgs("")...); p.exit != exitUsage || !strings.Contains(p.said, "is not marked for tests") {
				t.Fatalf("without a mark: exit %d, it says %s", p.exit, p.said)
			}
			mark(t, from, false)
			args := with("--count-command", "orders=proved-count --db '{{store}}' --prefix '"+of[1]+"' orders")
			for wrong, laws := range map[string][]string{"": nil, mistake: {prove.OneEffect}} {
				p := proved(t, from, append(shopArgs(wrong, args...), of...)...)
				if !slices.Equal(p.broken(), laws) || (p.exit == exitOK) != (laws == nil) {
					t.Fatalf("%q: exit %d, broken: %v, want %v\n%s\n%s", wrong, p.exit, p.broken(), laws, p.said, p.output)
				}
				wantAdded(t, p)
				wantCounted(t, p, false)
				if f := p.Faults; f.Cuts != 4 || f.Connections == 0 || f.Swallowed+f.RepliesNotMet != 4 || len(p.Effects) != 1 {
					t.Errorf("%+v, %+v", f, p.Effects)
				}
			}
		})
	}
}

// Each line of a file is a request, with the key and the ID that it says.
func TestRequestsOfAFileAreProved(t *testing.T) {
	from, file := markedFile(t), filepath.Join(t.TempDir(), "orders.jsonl")
	lines := ""
	for n := range 40 {
		lines += fmt.Sprintf(`{"path": "/orders", "key": "order-%[1]d", "body": {"item": "item-%[1]d"}, "id": "item-%[1]d"}`+"\n", n+1)
	}
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	shop := func(wrong string, args ...string) []string {
		flags := append([]string{"--request", "POST /", "--requests-from", file, "--count", countOrders}, args...)
		return append(flags, shopArgs(wrong)[4:]...)
	}
	few := small[2:] // its lines are the requests
	p := proved(t, from, shop("answers differ", few...)...)
	if p.exit != exitNo || !slices.Equal(p.broken(), []string{prove.SameAnswer}) {
		t.Fatalf("exit %d, broken: %v\n%s", p.exit, p.broken(), p.said)
	}
	wantAdded(t, p)
	f := p.Findings[0]
	line, ok := strings.CutPrefix(f.Place, "orders.jsonl:")
	if want := []string{"keys", "get", "http", "order-" + line, "--scope", "alice"}; !ok || f.ID != "item-"+line || !slices.Equal(f.Look, want) {
		t.Errorf("%+v", f)
	}
	for _, e := range p.Effects {
		if e.Once != 40 || e.Total != 40 {
			t.Errorf("%+v", e)
		}
	}
	p = proved(t, from, shop("", few...)...)
	if want := "orders.jsonl:"; p.exit != exitFailed || !strings.Contains(p.said, want) || !strings.Contains(p.said, "so an earlier answer would be repeated") {
		t.Errorf("a second time: exit %d, it says %s", p.exit, p.said)
	}
	for flag, value := range map[string]string{"--for": "1s", "--requests": "41"} {
		if p := proved(t, from, shop("", flag, value)...); p.exit != exitUsage || !strings.Contains(p.said, "orders.jsonl:1: its key or its id is the same each time") {
			t.Errorf("%s %s: exit %d, it says %s", flag, value, p.exit, p.said)
		}
	}
}

// What is wrong with a program is found, and nothing else.
func TestMistakesAreProved(t *testing.T) {
	for wrong, laws := range map[string][]string{
		"row outside":       {prove.OneEffect},
		"key per attempt":   {prove.OneEffect},
		"ack before commit": {prove.OneEffect},
		"answers differ":    {prove.SameAnswer},
		"parks":             {prove.NobodyAsks},
		"no relay":          {prove.Drains},
	} {
		t.Run(wrong, func(t *testing.T) {
			t.Parallel()
			args := with("--count", countOrders)
			if wrong == "ack before commit" {
				args = append(args, "--count", countInvoices, "--for", "5s")
			}
			if wrong == "no relay" {
				args = append(args, "--patience", "10s") // what never drains is waited for
			}
			p := proved(t, markedFile(t), shopArgs(wrong, args...)...)
			if p.exit != exitNo || !slices.Equal(p.broken(), laws) {
				t.Fatalf("exit %d, broken: %v, want %v\n%s", p.exit, p.broken(), laws, p.said)
			}
			wantAdded(t, p)
			wantCounted(t, p, wrong == "ack before commit")
			if f := p.Findings[0]; f.ID == "" || f.Text == "" || len(f.Look) == 0 {
				t.Errorf("%+v", f)
			}
		})
	}
	t.Run("a person may be needed", func(t *testing.T) {
		t.Parallel()
		p := proved(t, markedFile(t), shopArgs("parks", with("--may-park", "--count", countOrders)...)...)
		if p.exit != exitOK || p.Left.Shelf["parked"] != 40 {
			t.Errorf("exit %d: %+v", p.exit, p.Report)
		}
	})
}

// The program of the example is right without its switch, and each of its mistakes is found.
func TestTheExampleIsProved(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program and takes rounds: run it without -short")
	}
	dir := t.TempDir()
	shop := filepath.Join(dir, "shop.exe")
	if said, err := exec.Command("go", "build", "-trimpath", "-o", shop, "../../examples/prove/shop").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, bug := range []string{"none", "key-per-attempt", "row-outside", "ack-before-commit"} {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			p := proved(t, markedFile(t), "--requests-from", "../../examples/prove/shop/orders.jsonl", "--requests", "40", "--lost", "6", "--kills", "5",
				"--for", "4s", "--count", countOrders, "--count", countInvoices, "--", shop, "-db", "{{address}}", "-listen", "{{listen}}", "-bug", bug)
			if want := []string{prove.OneEffect}; (bug == "none") != p.Right() || !p.Right() && !slices.Equal(p.broken(), want) || p.exit > exitNo {
				t.Fatalf("exit %d, broken: %v\n%s\n%s", p.exit, p.broken(), p.said, p.output)
			}
			wantAdded(t, p)
			wantCounted(t, p, bug == "ack-before-commit")
		})
	}
}

// Without a mark, the program is not even started.
func TestAnUnmarkedStoreIsNotTouched(t *testing.T) {
	from, _ := shopFile(t)
	p := proved(t, from, shopArgs("")...)
	if want := "once prove mark --url " + from; p.exit != exitUsage || !strings.Contains(p.said, want) || p.output != "" {
		t.Errorf("exit %d, it says %s, the program %s", p.exit, p.said, p.output)
	}
	if n := len(columnsOf(t, from, "orders")); n > 0 {
		t.Errorf("the program has made its table, with %d columns", n)
	}
}

func columnsOf(t *testing.T, from, table string) (names []string) {
	t.Helper()
	rows, err := open(t, from).Tables.DB.Query("SELECT name FROM pragma_table_info('" + table + "')")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// Where nothing is proved, the command says why.
func TestNothingIsProved(t *testing.T) {
	from := markedFile(t)
	elsewhere := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/other.db"
	shop := func(wrong string) []string { return shopArgs(wrong, small...) }
	for name, c := range map[string]struct {
		args []string
		exit int
		says string
	}{
		"ends":        {shop("ends"), exitFailed, "the program ended 5 times in a row before it listened"},
		"its output":  {shop("ends"), exitFailed, "there is no configuration"},
		"deaf":        {shopArgs("deaf", "--patience", "1s"), exitFailed, "the program did not listen at 127.0.0.1:"},
		"missing":     {[]string{"--request", "GET /", "--", "no-such-program"}, exitFailed, "the program cannot be started"},
		"placeholder": {[]string{"--request", "GET /", "--", "proved-shop", "{{db}}"}, exitUsage, "unknown placeholder {{db}}"},
		"one port":    {[]string{"--request", "GET /", "--service", "http://localhost:1", "--copies", "2", "--", "x"}, exitUsage, "only one of 2 copies"},
		"other path":  {append([]string{"--request", "POST /order"}, shop("")[2:]...), exitFailed, "nothing was proved"},
		"other store": {append([]string{"--env", "A=B"}, strings.Split(strings.ReplaceAll(strings.Join(shop(""), "\x00"), "{{store}}", elsewhere), "\x00")...),
			exitFailed, "the program has made no key in"},
		"command":  {shopArgs("", with("--count-command", "orders=echo {{address}} once")...), exitFailed, `shop.db": it has to print an ID and a number`},
		"it fails": {shopArgs("", with("--count-command", "orders=echo no orders >&2; exit 3")...), exitFailed, "the count orders: the command failed: exit status 3. It wrote:\nno orders"},
		"no name":  {shopArgs("", "--count-command", "proved-count"), exitUsage, "use NAME=COMMAND"},
		"no file":  {[]string{"--requests-from", "no-such-file", "--", "x"}, exitFailed, "no-such-file"},
		"no flag":  {[]string{"--", "x"}, exitUsage, "there is no request: add --request 'POST /orders', or --requests-from FILE"},
		"query":    {shopArgs("", with("--count", "SELECT item FROM nowhere")...), exitFailed, "the count effects: "},
	} {
		t.Run(name, func(t *testing.T) {
			if p := proved(t, from, c.args...); p.exit != c.exit || !strings.Contains(p.said, c.says) {
				t.Errorf("exit %d, it says %s", p.exit, p.said)
			}
		})
	}
}
