package docs

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// typed are the kinds of blocks with commands or SQL statements that a reader
// types. A block without a kind is one of them if a line begins with a prompt.
var typed = []string{"sh", "bash", "shell", "zsh", "console", "sql"}

// notTyped are the other kinds of blocks.
var notTyped = []string{"", "go", "text", "json", "toml", "yaml", "ini", "xml", "http", "diff", "mermaid", "promql", "proto",
	"dockerfile", "nginx", "make", "python", "php", "js", "ts", "java", "csharp", "ruby", "rust"}

// fence is a code block of a document.
type fence struct {
	page string // its path from the root
	line int    // of its first line
	kind string
	text []string
}

// command is a command to type and the output that the document shows.
type command struct {
	page  string
	line  int
	text  string
	shown []string
}

func (c command) String() string { return fmt.Sprintf("%s:%d: %s", c.page, c.line, c.text) }

// pages returns the Markdown files of the tree outside hidden directories.
func pages(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err == nil && strings.HasSuffix(path, ".md") {
			all = append(all, path)
		}
		return err
	})
	if err != nil || len(all) < 20 {
		t.Fatalf("only %d documents were found: %v", len(all), err)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func fences(t *testing.T) (all []fence) {
	t.Helper()
	for _, path := range pages(t) {
		page, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		found, err := fencesOf(filepath.ToSlash(page), read(t, path))
		if err != nil {
			t.Error(err)
		}
		all = append(all, found...)
	}
	return all
}

var mark = regexp.MustCompile("^( *)(```+|~~~+) *([^` ]*)")

// fencesOf returns the code blocks of a document. Blocks in lists are indented.
func fencesOf(page, text string) (all []fence, err error) {
	open, indent := "", ""
	for i, line := range strings.Split(text, "\n") {
		m := mark.FindStringSubmatch(line)
		switch {
		case open == "" && m != nil:
			indent, open = m[1], m[2]
			all = append(all, fence{page: page, line: i + 2, kind: strings.ToLower(m[3])})
		case open != "" && strings.TrimSpace(line) == open:
			open = ""
		case open != "":
			f := &all[len(all)-1]
			f.text = append(f.text, strings.TrimPrefix(line, indent))
		}
	}
	if open != "" {
		return all, fmt.Errorf("%s: a block does not end", page)
	}
	for i := range all {
		if err := all[i].know(); err != nil {
			return all, err
		}
	}
	return all, nil
}

var program = regexp.MustCompile(`^(\$ |once [a-z]|go (run|test|get|mod|build|install) |make [a-z]|cd /|docker |psql |apt|SELECT |INSERT |UPDATE |DELETE |ALTER |CREATE )`)

// know reports whether a block contains something to type. A block that looks
// like it must have such a kind.
func (f *fence) know() error {
	if f.kind == "" && slices.ContainsFunc(f.text, func(line string) bool { return strings.HasPrefix(line, "$ ") }) {
		f.kind = "console"
	}
	switch {
	case slices.Contains(typed, f.kind):
		return nil
	case !slices.Contains(notTyped, f.kind):
		return fmt.Errorf("%s:%d: a block of %q: add it to typed or notTyped in blocks_test.go", f.page, f.line, f.kind)
	case f.kind == "" && slices.ContainsFunc(f.text, program.MatchString):
		return fmt.Errorf("%s:%d: this looks like a command: mark the block as sh, console or sql, or as text", f.page, f.line)
	}
	return nil
}

// commands returns the commands of a shell block.
func (f fence) commands() (all []command, err error) {
	begun := false
	for i, line := range f.text {
		last := len(all) - 1
		prompted, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case begun: // the command goes on
			all[last].text += "\n" + strings.TrimPrefix(line, "> ")
		case f.kind == "console" && !prompt:
			if last < 0 {
				return nil, fmt.Errorf("%s:%d: what a command says stands before the first command", f.page, f.line+i)
			}
			all[last].shown = append(all[last].shown, line)
			continue
		case strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "#"):
			continue
		default:
			all = append(all, command{page: f.page, line: f.line + i, text: prompted})
			last++
		}
		if begun, err = goesOn(all[last].text); err != nil {
			return nil, fmt.Errorf("%s: %w", all[last], err)
		}
	}
	if begun {
		return nil, fmt.Errorf("%s: the command does not end", all[len(all)-1])
	}
	return all, nil
}

var hereDocument = regexp.MustCompile(`<<-?\s*['"]?(\w+)`)

// goesOn reports whether bash would read another line for the command.
func goesOn(text string) (bool, error) {
	if m := hereDocument.FindStringSubmatch(text); m != nil {
		return !strings.HasSuffix(text, "\n"+m[1]), nil
	}
	if strings.HasSuffix(text, "\\") {
		return true, nil
	}
	check := exec.Command("bash", "-n", "-c", text)
	check.Env = append(os.Environ(), "LC_ALL=C") // for the language of its errors
	out, err := check.CombinedOutput()
	if err == nil {
		return false, nil
	}
	if said := string(out); strings.Contains(said, "unexpected end of file") || strings.Contains(said, "unexpected EOF") {
		return true, nil
	}
	return false, fmt.Errorf("%w: %s", err, out)
}

func TestBlocksAreTakenApart(t *testing.T) {
	text := strings.Join([]string{
		"Text, `$ no command`.", "```sh", "# a comment", "once a # b", "", "X=1 \\", "\tonce c", "for i in 1; do", "  once d", "done",
		"cat > f <<'END'", "$ x", "END", "```", "- in a list:", "  ```console", "  $ once e", "  A  B", "  ", "  1  2", "  $ once f 'g", "  > h'", "  ```",
		"```", "$ once i", "```", "```json", "{}", "```"}, "\n")
	blocks, err := fencesOf("p", text)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range blocks {
		if f.kind == "json" {
			continue
		}
		found, err := f.commands()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range found {
			got = append(got, fmt.Sprintf("%d %q %q", c.line, c.text, c.shown))
		}
	}
	want := []string{`4 "once a # b" []`, `6 "X=1 \\\n\tonce c" []`, `8 "for i in 1; do\n  once d\ndone" []`,
		`11 "cat > f <<'END'\n$ x\nEND" []`, `17 "once e" ["A  B" "" "1  2"]`, `21 "once f 'g\nh'" []`, `25 "once i" []`}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBlocksThatCannotBeTakenApart(t *testing.T) {
	for text, want := range map[string]string{
		"```sh\nonce a":                  "does not end",
		"```sh\nonce 'a\n```":            "does not end",
		"```sh\nonce a )\n```":           "syntax error",
		"```console\nA  B\n$ once\n```":  "before the first",
		"```cobol\nMOVE\n```":            "add it to typed or notTyped",
		"```\nonce keys get pay 1\n```":  "mark the block",
		"```\ngo run ./cmd/once x\n```":  "mark the block",
		"```\nSELECT 1\n```":             "mark the block",
		"```sh\ncat <<END\nonce a\n```":  "does not end",
		"```sh\nfor i in 1 2; do x\n```": "does not end",
	} {
		blocks, err := fencesOf("p", text)
		if err == nil {
			_, err = blocks[0].commands()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
