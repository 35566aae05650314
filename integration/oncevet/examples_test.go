// Package oncevet runs the command oncevet as go vet does, on the examples and on
// mistakes that are planted in them.
package oncevet

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mistake is a change of an example, and the rule that finds it.
type mistake struct {
	rule     string
	file     string // in examples
	old, new string
}

var mistakes = []mistake{
	{"txeffect", "quickstart/main.go", "\t\t\tlog.Printf(\"an invoice for",
		"\t\t\t_, _ = http.Post(address, \"text/plain\", nil)\n\t\t\tlog.Printf(\"an invoice for"},
	{"txpool", "quickstart/main.go", "tx.ExecContext(r.Context(), `INSERT INTO orders",
		"db.ExecContext(r.Context(), `INSERT INTO orders"},
	{"txpool", "orm/main.go", "tx.NewInsert()", "db.NewInsert()"},
	{"txpublish", "quickstart/main.go", "\t\treturn events.Put(",
		"\t\tqueue.Publisher().Publish(r.Context(), nil)\n\t\treturn events.Put("},
	{"dointx", "orders/consumers.go", "\t_, err = tx.ExecContext(ctx, `INSERT INTO reservation",
		"\t_, _ = once.Do(ctx, s.store, mail.For(o.ID), nil)\n\t_, err = tx.ExecContext(ctx, `INSERT INTO reservation"},
	{"unstablekey", "payment/main.go", "work := pay.For(orderID)",
		"work := pay.For(fmt.Sprint(orderID, time.Now().UnixNano()))"},
	{"attemptkey", "orders/consumers.go", `r.Header.Set("Idempotency-Key", key)`,
		`r.Header.Set("Idempotency-Key", fmt.Sprint(key, time.Now().Unix()))`},
	{"earlyack", "orders/consumers.go", "\t_, err = tx.ExecContext(ctx, `INSERT INTO points",
		"\tvar session broker.Session\n\t_ = session.Ack(ctx, nil)\n\t_, err = tx.ExecContext(ctx, `INSERT INTO points"},
	{"lostmark", "orders/consumers.go", "0o600)\n\tif err != nil {\n\t\treturn \"\", once.NotDone(err)",
		"0o600)\n\tif err != nil {\n\t\treturn \"\", fmt.Errorf(\"mail: %v\", once.NotDone(err))"},
	{"mayretry", "payment/main.go", "\tif err != nil {\n\t\treturn \"\", err\n\t}\n\treturn once.DoTx",
		"\tif err == once.ErrParked {\n\t\treturn \"\", err\n\t}\n\treturn once.DoTx"},
	{"afterguard", "quickstart/main.go", "\t\tlog.Printf(\"an order of",
		"\t\tif item == \"\" {\n\t\t\thttp.Error(w, \"what?\", 400)\n\t\t}\n\t\tlog.Printf(\"an order of"},
}

// TestMistakesInExamplesAreFound finds nothing in the examples, and in copies of
// them each planted mistake and nothing else. In contrast to the tests of the
// rules, everything that the examples use is real.
func TestMistakesInExamplesAreFound(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tool := filepath.Join(dir, "oncevet")
	if out, err := exec.Command("go", "build", "-o", tool,
		"github.com/effectively-once/once/cmd/oncevet").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	replaced := map[string]string{}
	var packages, want []string
	for i, m := range mistakes {
		file := filepath.Join(examples, m.file)
		source := replaced[file]
		if source == "" {
			source = file
			packages = append(packages, "./"+filepath.Dir(m.file))
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Fatalf("%s has %d places for the mistake of %s", m.file, n, m.rule)
		}
		replaced[file] = filepath.Join(dir, fmt.Sprint(i, ".go"))
		if err := os.WriteFile(replaced[file], []byte(strings.Replace(string(text), m.old, m.new, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
		want = append(want, m.rule)
	}
	slices.Sort(want)

	fetched := regexp.MustCompile(`(?m)^go: downloading .*\n`) // of modules that this machine has not used before
	vet := func(args ...string) string {
		cmd := exec.Command("go", append(append([]string{"vet", "-vettool=" + tool}, args...), packages...)...)
		cmd.Dir = examples
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState.ExitCode() != 1 {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		return fetched.ReplaceAllString(string(out), "")
	}
	if said := vet(); said != "" {
		t.Errorf("in the examples as they are:\n%s", said)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	said := vet("-overlay=" + list)
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^\S+\.go:\d+:\d+: (\w+): `).FindAllStringSubmatch(said, -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v:\n%s", got, want, said)
	}
	if said := vet("-overlay="+list, "-txpool=false"); strings.Contains(said, ": txpool: ") ||
		!strings.Contains(said, ": txeffect: ") {
		t.Errorf("with -txpool=false:\n%s", said)
	}
}
