package seedbugs

import (
	"os"
	"strings"
	"testing"
)

const (
	root     = "../.."
	document = root + "/docs/seeded-bugs.md"
)

// A bug whose place has gone says nothing any more, and nobody would notice: it must get another place.
func TestEveryBugFitsTheTree(t *testing.T) {
	for _, b := range All() {
		if err := b.Fits(root); err != nil {
			t.Error(err)
		}
	}
}

func TestThereAreEnoughBugsInEveryRoom(t *testing.T) {
	found := map[string]int{}
	for _, b := range All() {
		room := "root"
		for _, dir := range []string{"internal/sqlschema", "internal", "store/sqlstore", "store/pgstore"} {
			if strings.HasPrefix(b.File, dir+"/") {
				room = dir
				break
			}
		}
		found[room]++
	}
	for room, want := range map[string]int{"root": 20, "internal": 6, "internal/sqlschema": 15, "store/sqlstore": 10, "store/pgstore": 20} {
		if found[room] < want {
			t.Errorf("%d bugs are in %s, want %d at least", found[room], room, want)
		}
	}
}

func TestEveryBugHasANameAReasonAndATest(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range All() {
		if b.Name == "" || seen[b.Name] {
			t.Errorf("the name %q is empty, or there twice", b.Name)
		}
		seen[b.Name] = true
		if b.Why == "" || strings.Contains(b.Why, "\n") {
			t.Errorf("%s: the reason is not one line", b.Name)
		}
		if _, err := os.Stat(root + "/" + b.Test.Package); err != nil || b.Test.Run == "" {
			t.Errorf("%s: the test is %q, %v", b.Name, b.Test, err)
		}
	}
}

func TestTheDocumentHasTheTable(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), Markdown(All())) {
		t.Error("docs/seeded-bugs.md has another table: replace it by what go run ./integration/cmd/seedbugs -markdown prints")
	}
}
