package seedbugs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bug is a mistake that a change could introduce.
type Bug struct {
	Name string // what is wrong, in words with hyphens
	Why  string // its effect on a user, in one line
	File string // from the root of the tree
	Old  string // what it replaces: occurs exactly once in File
	New  string
	Test Test // must fail with it, and pass without
}

// Test names tests of one package.
type Test struct {
	Package string // a directory, from the root of the tree: "./store/pgstore"
	Run     string // as in go test -run
}

func (t Test) String() string { return t.Package + " " + t.Run }

// All lists the bugs by package.
func All() []Bug {
	return slices.Concat(rootBugs, smallBugs, commandBugs, vetBugs, consoleBugs, sqlBugs, sqlstoreBugs, pgstoreBugs, speculationBugs, manyBugs, asyncBugs, partitionBugs, inboxBugs, batchBugs, settleBugs, consumerBugs, outboxBugs,
		reconcileBugs, listBugs, janitorBugs, retentionBugs, quotaBugs, casBugs, redisBugs, cosmosBugs, dynamoBugs, natsBugs, redisBrokerBugs, sqsBrokerBugs, pubsubBugs, eventHubsBugs, serviceBusBugs, storeBrokerBugs, carriedBugs, fleetBugs, brokerBugs, tieredBugs, tableBugs, webhookBugs, httpBugs, modelBugs)
}

// patch is the text of a file with the bug in it.
func (b Bug) patch(text string) (string, error) {
	if n := strings.Count(text, b.Old); n != 1 {
		return "", fmt.Errorf("%s: the text to replace occurs %d times in %s, want once:\n%s", b.Name, n, b.File, b.Old)
	}
	if b.Old == b.New {
		return "", fmt.Errorf("%s: changes nothing", b.Name)
	}
	return strings.Replace(text, b.Old, b.New, 1), nil
}

// Fits reports whether the bug can still be applied to the tree below root.
func (b Bug) Fits(root string) error {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(b.File)))
	if err != nil {
		return err
	}
	_, err = b.patch(string(text))
	return err
}

// In calls do while the tree below root, which is a copy, contains the bug.
func (b Bug) In(root string, do func() error) error { return b.in(root, do) }

// in calls do while the tree below root contains the bug.
func (b Bug) in(root string, do func() error) (err error) {
	file := filepath.Join(root, filepath.FromSlash(b.File))
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	patched, err := b.patch(string(text))
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(patched), 0o644); err != nil {
		return err
	}
	defer func() {
		if undone := os.WriteFile(file, text, 0o644); err == nil {
			err = undone
		}
	}()
	return do()
}
