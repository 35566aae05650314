package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"
)

type manCommand struct{}

// Help is the long text of once man --help.
func (manCommand) Help() string {
	return `
It has the --help of every verb.

Examples:
  once man | man -l -
  once man | sudo tee /usr/local/share/man/man1/once.1 > /dev/null    # from then on: man once`
}

// Run prints the manual page.
func (manCommand) Run(parser *kong.Kong) error {
	info, _ := debug.ReadBuildInfo()
	_, err := os.Stdout.WriteString(manual(parser.Model.Node, versionOf(info).Version))
	return err
}

// manual returns the manual page of the command, from what --help prints.
func manual(root *kong.Node, version string) string {
	p := new(manPage)
	about, more, _ := strings.Cut(root.Help, "\n\n")
	p.macro("TH", "ONCE", "1", "", "once "+version, "User Commands")
	p.WriteString(".nh\n.ad l\n") // no hyphens in words that people search for or copy
	p.macro("SH", "NAME")
	p.line("once - " + strings.TrimSuffix(about, "."))
	p.macro("SH", "SYNOPSIS")
	p.line("once VERB [ARGUMENTS] [FLAGS]")
	p.macro("SH", "DESCRIPTION")
	p.text(more)
	p.macro("PP")
	p.line("Every verb has the flag -h, --help.")
	p.macro("SH", "VERBS")
	p.verbs(root)
	p.macro("SH", "EXIT STATUS")
	p.line(strings.TrimPrefix(exitHelp, "Exit status: "))
	return p.String()
}

// manPage is a manual page in the language of man(7).
type manPage struct{ strings.Builder }

// roff keeps the characters of a text as they are: unescaped, some would become
// typographic ones, which nobody can paste into a shell.
var roff = strings.NewReplacer(`\`, `\(rs`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`)

func escaped(text string) string {
	var b strings.Builder
	for _, r := range roff.Replace(text) {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}

// macro writes a request. A line of text never begins like one.
func (p *manPage) macro(name string, args ...string) {
	p.WriteString("." + name)
	for _, arg := range args {
		p.WriteString(` "` + escaped(arg) + `"`)
	}
	p.WriteByte('\n')
}

func (p *manPage) line(text string) {
	text = escaped(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	p.WriteString(text + "\n")
}

// text writes paragraphs. Those that are indented keep their lines.
func (p *manPage) text(text string) {
	last := ""
	for _, line := range strings.Split(strings.Trim(text, "\n"), "\n") {
		kept := strings.HasPrefix(line, " ")
		switch wasKept := strings.HasPrefix(last, " "); {
		case kept && !wasKept:
			p.macro("PP")
			p.macro("RS", "4")
			p.macro("nf")
		case !kept && wasKept:
			p.macro("fi")
			p.macro("RE")
		}
		if kept {
			p.line(strings.TrimPrefix(line, "  "))
		} else if line != "" {
			if last == "" || strings.HasPrefix(last, " ") {
				p.macro("PP")
			}
			p.line(line)
		}
		last = line
	}
	if strings.HasPrefix(last, " ") {
		p.macro("fi")
		p.macro("RE")
	}
}

// verbs writes the verbs below a node, each with its arguments and flags.
func (p *manPage) verbs(of *kong.Node) {
	for _, verb := range of.Children {
		if verb.Hidden {
			continue
		}
		p.macro("SS", "once "+verb.Summary())
		p.line(verb.Help)
		p.text(strings.Replace(verb.Detail, exitHelp, "", 1))
		for _, arg := range verb.Positional {
			p.item(arg.Summary(), arg.Help)
		}
		for _, flag := range verb.Flags {
			if !flag.Hidden {
				p.item(flag.String(), flag.Help)
			}
		}
		p.verbs(verb)
	}
}

func (p *manPage) item(term, about string) {
	p.macro("TP")
	p.macro("B", term)
	p.line(cmp.Or(about, term))
}
