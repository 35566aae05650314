package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents returns the README and the pages of docs without the decisions,
// which are not edited when names change.
func documents(t *testing.T) (files []string) {
	t.Helper()
	files = []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "decisions" {
			return filepath.SkipDir
		}
		if err == nil && strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 25 {
		t.Fatalf("only %d pages were found", len(files))
	}
	return files
}

var linked = regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)

// linksOf returns the files that a page links to.
func linksOf(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	to := make(map[string]bool)
	for _, m := range linked.FindAllStringSubmatch(string(text), -1) {
		to[filepath.Join(filepath.Dir(page), m[1])] = true
	}
	return to
}

// TestEachPageIsOnTheMap checks that docs/README.md links to each page and that
// the README links to it.
func TestEachPageIsOnTheMap(t *testing.T) {
	readme, index := filepath.Join(root, "README.md"), filepath.Join(root, "docs", "README.md")
	if !linksOf(t, readme)[index] {
		t.Error("README.md does not link to docs/README.md")
	}
	onMap := linksOf(t, index)
	for _, page := range documents(t) {
		if page != readme && page != index && !onMap[page] {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
	decisions := filepath.Join(root, "docs", "decisions")
	if !onMap[filepath.Join(decisions, "README.md")] {
		t.Error("docs/README.md does not link to decisions/README.md")
	}
	records, _ := filepath.Glob(filepath.Join(decisions, "0*.md"))
	listed := linksOf(t, filepath.Join(decisions, "README.md"))
	for _, record := range records {
		if !listed[record] {
			t.Errorf("decisions/README.md does not link to %s", record)
		}
	}
	if len(records) < 20 {
		t.Errorf("only %d decisions were found", len(records))
	}
}

var (
	fenced    = regexp.MustCompile("(?ms)^```.*?^```$")
	testName  = regexp.MustCompile(`\bTest[A-Z]\w+`)
	testBegin = regexp.MustCompile(`(?m)^func (Test[A-Z]\w+)\(`)
)

// TestEachNamedTestIsThere checks that the tests named by pages exist in the
// tree.
func TestEachNamedTestIsThere(t *testing.T) {
	there := make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range testBegin.FindAllSubmatch(source, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range documents(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testName.FindAllString(fenced.ReplaceAllString(string(text), ""), -1) {
			if named++; !there[name] {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d names were found", named)
	}
}
