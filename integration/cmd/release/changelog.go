package main

import (
	"fmt"
	"strings"
	"time"
)

const (
	changelogName = "CHANGELOG.md"
	unreleased    = "Unreleased"
)

// section is a part of the changelog, between two headings of level 2.
type section struct {
	before string // the text before the heading
	body   string // without the heading, trimmed
	after  string // the text from the next heading on
}

// findSection finds the section of a version, or the unreleased section.
func findSection(changelog, title string) (section, error) {
	var s section
	begin := -1
	for at := 0; at < len(changelog); {
		line, _, _ := strings.Cut(changelog[at:], "\n")
		next := min(at+len(line)+1, len(changelog))
		switch {
		case begin >= 0 && strings.HasPrefix(line, "## "):
			s.body, s.after = strings.TrimSpace(changelog[begin:at]), changelog[at:]
			return s, nil
		case line == "## "+title || strings.HasPrefix(line, "## "+title+" "):
			s.before, begin = changelog[:at], next
		}
		at = next
	}
	if begin < 0 {
		return s, fmt.Errorf("%s has no section %q", changelogName, "## "+title)
	}
	s.body = strings.TrimSpace(changelog[begin:])
	return s, nil
}

// dateChangelog makes the unreleased section the one about version. The second
// text has a new, empty section for unreleased changes above it.
func dateChangelog(changelog, version string, day time.Time) (dated, reopened string, err error) {
	if _, err := findSection(changelog, version); err == nil {
		return "", "", fmt.Errorf("%s already has a section about %s", changelogName, version)
	}
	s, err := findSection(changelog, unreleased)
	if err != nil {
		return "", "", err
	}
	if !hasEntries(s.body) {
		return "", "", fmt.Errorf("the section %q of %s is empty: write what changes for users", "## "+unreleased, changelogName)
	}
	released := "## " + version + " - " + day.UTC().Format(time.DateOnly) + "\n\n" + s.body + "\n"
	if s.after != "" {
		released += "\n" + s.after
	}
	return s.before + released, s.before + "## " + unreleased + "\n\n" + released, nil
}

func hasEntries(body string) bool {
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}
