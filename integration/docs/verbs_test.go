//go:build linux

package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	inBackquotes = regexp.MustCompile("`((?:once|make|go (?:run|test)) [^`]+)`")
	inComment    = regexp.MustCompile(`# .*: (once [^|;]+)`)
	word         = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flag         = regexp.MustCompile(`^--[a-z-]+$`)
)

// mentioned matches inline code about the command, the Makefile and programs,
// such as `once keys get`.
func mentioned(line string) (all []string) {
	for _, pattern := range []*regexp.Regexp{inBackquotes, inComment} {
		for _, m := range pattern.FindAllStringSubmatch(line, -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// asked returns the command that checks mentioned code: for once and make, the
// leading words and the flags; for go, the packages.
func asked(text string) string {
	var words, flags, packages []string
	all := true
	for w := range strings.FieldsSeq(text) {
		all = all && word.MatchString(w)
		switch {
		case strings.HasPrefix(w, "./"):
			packages = append(packages, w)
		case flag.MatchString(w):
			flags = append(flags, w)
		case all:
			words = append(words, w)
		}
	}
	switch words[0] {
	case "go":
		return "go list " + strings.Join(packages, " ")
	case "make":
		return strings.Join(words, " ") + " -n"
	}
	question := `help=$(` + strings.Join(words, " ") + " --help)"
	for _, f := range flags {
		question += ` && grep -e '` + f + `\b' <<< "$help"`
	}
	return question
}

// TestVerbsExist checks that the verbs, flags, targets and packages in inline
// code of the documents exist.
func TestVerbsExist(t *testing.T) {
	w := new(world)
	w.furnish(t)
	s := newShell(t, w.checkout, w.environment(t, newHome(t)))
	known := make(map[string]bool)
	for _, path := range pages(t) {
		for i, line := range strings.Split(read(t, path), "\n") {
			for _, text := range mentioned(line) {
				question := asked(text)
				if known[question] {
					continue
				}
				known[question] = true
				if status, said, _ := s.run(t, question, nil); status != 0 {
					t.Errorf("%s:%d: %s: %s ends with %d:\n%s", filepath.Base(path), i+1, text, question, status, said)
				}
			}
		}
	}
	if len(known) < 20 {
		t.Errorf("only %d were found: the test reads the wrong lines", len(known))
	}
	for _, right := range []string{"once serve --config FILE --listen ADDRESS", "once keys release pay/charge ID --reason '...'"} {
		if status, said, _ := s.run(t, asked(right), nil); status != 0 {
			t.Errorf("%s: %s ends with %d:\n%s", right, asked(right), status, said)
		}
	}
	for _, wrong := range []string{"`once keys undo`", "`once keys list --nothing`", "`once serve --config once.toml --listens X`", "x # then: once unknown solve", "`make tea`", "`go run ./examples/order`"} {
		found := mentioned(wrong)
		if len(found) != 1 {
			t.Fatalf("%s mentions %q", wrong, found)
		}
		if status, _, _ := s.run(t, asked(found[0]), nil); status == 0 {
			t.Errorf("%s is taken for right: %s", wrong, asked(found[0]))
		}
	}
}
