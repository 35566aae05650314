//go:build linux

package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	inBackquotes = regexp.MustCompile("`((?:once|make) [^`]+)`")
	inComment    = regexp.MustCompile(`# .*: (once [^|;]+)`)
	word         = regexp.MustCompile(`^(--)?[a-z][a-z-]*$`)
)

// mentioned is what a line of a document says in passing about the command and the Makefile: `once keys get`.
func mentioned(line string) (all []string) {
	for _, pattern := range []*regexp.Regexp{inBackquotes, inComment} {
		for _, m := range pattern.FindAllStringSubmatch(line, -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// asked is the question about the verbs and the flags of what is mentioned, up to the first argument that is none of them.
func asked(text string) string {
	var words []string
	for w := range strings.FieldsSeq(text) {
		if !word.MatchString(w) {
			break
		}
		words = append(words, w)
	}
	if words[0] == "make" {
		return strings.Join(words, " ") + " -n"
	}
	return strings.Join(words, " ") + " --help"
}

// TestVerbsExist asks once and make about what the documents mention in passing: verbs, flags and targets that are gone are
// errors.
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
	for _, wrong := range []string{"`once keys forget`", "`once keys list --nothing`", "x # then: once unknown solve", "`make tea`"} {
		found := mentioned(wrong)
		if len(found) != 1 {
			t.Fatalf("%s mentions %q", wrong, found)
		}
		if status, _, _ := s.run(t, asked(found[0]), nil); status == 0 {
			t.Errorf("%s is taken for right: %s", wrong, asked(found[0]))
		}
	}
}
