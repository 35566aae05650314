package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// What is not in docs/command.md, people do not find; programs that match the names of findings need them there.
func TestDocumentHasEveryVerbAndFinding(t *testing.T) {
	text, err := os.ReadFile("../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	parser, err := kong.New(&cli{})
	if err != nil {
		t.Fatal(err)
	}
	verbs := parser.Model.Leaves(true)
	for _, verb := range verbs {
		if path := "once " + verb.Path(); !strings.Contains(document, path) {
			t.Errorf("docs/command.md says nothing of %s", path)
		}
	}
	files, err := filepath.Glob("internal/doctor/*.go")
	if err != nil {
		t.Fatal(err)
	}
	findings := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`found\("([a-z_-]+)",`).FindAllStringSubmatch(string(text), -1) {
			findings++
			if !strings.Contains(document, "`"+found[1]+"`") {
				t.Errorf("docs/command.md does not list the finding %s", found[1])
			}
		}
	}
	if len(verbs) < 20 || findings < 30 {
		t.Errorf("only %d verbs and %d findings were seen: the test looks in the wrong place", len(verbs), findings)
	}
}
