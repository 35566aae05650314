package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// rendered returns a manual page as man shows it, without the effects of a printer.
func rendered(t *testing.T, page string) string {
	t.Helper()
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("groff is not installed")
	}
	cmd := exec.Command("groff", "-man", "-ww", "-Tutf8", "-rLL=200n", "-P-cbou")
	var complaints strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(page), &complaints
	shown, err := cmd.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("groff: %v\n%s", err, &complaints)
	}
	return string(shown)
}

func TestManualHasEveryVerbAndFlag(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.Name("once"), kong.Description(description))
	if err != nil {
		t.Fatal(err)
	}
	page := manual(parser.Model.Node, "v1.2.3")
	sections := make(map[string]string) // by the path of the verb
	for _, section := range strings.Split(page, "\n.SS ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		sections[strings.NewReplacer(`"`, "", `\-`, "-").Replace(title)] = rest
	}
	flags := 0
	for _, verb := range parser.Model.Leaves(true) {
		section, ok := sections["once "+verb.Summary()]
		if !ok {
			t.Errorf("the page has no section for once %s", verb.Path())
			continue
		}
		for _, flag := range verb.Flags {
			if flag.Hidden || flag.Name == "help" {
				continue
			}
			flags++
			if !strings.Contains(section, "\n.B "+`"`+escaped(flag.String())+`"`+"\n"+escaped(flag.Help)) {
				t.Errorf("once %s: the page does not explain --%s", verb.Path(), flag.Name)
			}
		}
		for _, arg := range verb.Positional {
			if !strings.Contains(section, "\n.B "+`"`+escaped(arg.Summary())+`"`) {
				t.Errorf("once %s: the page does not explain %s", verb.Path(), arg.Summary())
			}
		}
	}
	if flags < 100 || strings.Contains(page, "demo\\-worker") || strings.Contains(page, "complete\\-words") {
		t.Errorf("%d flags were found, or the page shows what is hidden", flags)
	}

	shown := rendered(t, page)
	for _, want := range []string{"once v1.2.3", "once - Effectively-once processing", "\n   once keys list [flags]\n",
		`--operation=NAME`, "once keys list --status parked --all -o json | jq -r '.keys[].id'",
		`'postgres://ops:${PROD_PASSWORD}@db.internal/shop?sslmode=verify-full'`, `--outcome '{"charge":"ch_99"}'`, "4 not found"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the page that people see lacks %q", want)
		}
	}
	if n := strings.Count(shown, "Exit status: 0 success"); n > 0 {
		t.Errorf("the exit status is explained %d times outside its section", n)
	}
}

// What a shell would run, or roff would read as a request, is shown as it is written.
func TestManualKeepsEveryCharacter(t *testing.T) {
	const text = "  .TH 'a' `b` ~/c ^d -e \\f \"g\" ${h} é …\n  'I j\n.K l"
	p := new(manPage)
	p.macro("TH", "ONCE", "1")
	p.text(text)
	shown := rendered(t, p.String())
	for _, want := range []string{".TH 'a' `b` ~/c ^d -e \\f \"g\" ${h} é …\n", "'I j\n", ".K l\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is missing in %q", want, shown)
		}
	}
}
