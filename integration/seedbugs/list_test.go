package seedbugs

import (
	"os"
	"strings"
	"testing"
)

const root = "../.."

// A bug that can no longer be applied tests nothing: it must be moved.
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
		for _, dir := range []string{"store/sqlschema", "internal", "store/sqlstore", "store/pgstore"} {
			if strings.HasPrefix(b.File, dir+"/") {
				room = dir
				break
			}
		}
		found[room]++
	}
	for room, want := range map[string]int{"root": 20, "internal": 6, "store/sqlschema": 15, "store/sqlstore": 10, "store/pgstore": 20} {
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

func TestEveryBugHasALineInTheList(t *testing.T) {
	bugs := All()
	lines := strings.Split(strings.TrimSuffix(List(bugs), "\n"), "\n")
	if len(lines) != len(bugs) {
		t.Fatalf("the list has %d lines for %d bugs", len(lines), len(bugs))
	}
	for i, b := range bugs {
		for _, part := range []string{b.Name, b.Why, b.File, b.Test.Package, b.Test.Run} {
			if !strings.Contains(lines[i], part) {
				t.Errorf("the line of %s does not have %q: %s", b.Name, part, lines[i])
			}
		}
	}
}
