package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	columns  = regexp.MustCompile(`  +`)
	headings = regexp.MustCompile(`^[A-Z][A-Z0-9 ]+$`)
	// What differs from run to run: numbers, times, the address of a database.
	changing = regexp.MustCompile(`[a-z]+://[^\s)]*[^\s).:,]|\d[\d:.TZ-]*`)
	question = " [y/N]"
)

// missing compares the output shown in a document with that of a command and
// returns the first missing line. It compares the headings of a table and that
// it has a row, the names of JSON, the first of columns without headings, and
// all other text except numbers and addresses.
func missing(shown []string, said string) string {
	lines := strings.Split(said, "\n")
	inTable := false
	for _, line := range shown {
		fields := columns.Split(strings.TrimSpace(line), -1)
		isHeading := len(fields) > 1 && !slices.ContainsFunc(fields, func(f string) bool { return !headings.MatchString(f) })
		switch {
		case strings.TrimSpace(line) == "":
			inTable = false
		case isHeading:
			inTable = true
			at := slices.IndexFunc(lines, func(l string) bool { return slices.Equal(columns.Split(strings.TrimSpace(l), -1), fields) })
			if at < 0 || at+1 >= len(lines) || strings.TrimSpace(lines[at+1]) == "" {
				return line
			}
		case inTable && len(fields) > 1:
		case strings.HasPrefix(line, "{"):
			if !slices.ContainsFunc(lines, func(l string) bool { n := names(line); return n != "" && n == names(l) }) {
				return line
			}
		case len(fields) > 1 && !strings.HasPrefix(line, " "):
			if !slices.ContainsFunc(lines, func(l string) bool { return columns.Split(l, -1)[0] == fields[0] }) {
				return line
			}
		case !alike(line).MatchString(said):
			return line
		}
	}
	return ""
}

// names returns the names of the JSON object in a line.
func names(line string) string {
	var object map[string]any
	if json.Unmarshal([]byte(line), &object) != nil {
		return ""
	}
	return fmt.Sprint(slices.Sorted(maps.Keys(object)))
}

// alike matches lines that differ only in numbers and addresses. A question is
// followed by its answer.
func alike(line string) *regexp.Regexp {
	line, _, asks := strings.Cut(strings.TrimSpace(line), question)
	pattern, from := "", 0
	for _, at := range changing.FindAllStringIndex(line, -1) {
		pattern += regexp.QuoteMeta(line[from:at[0]])
		if line[at[0]] <= '9' {
			pattern += `\d`
		}
		pattern += `[^\s)]*`
		from = at[1]
	}
	pattern += regexp.QuoteMeta(line[from:])
	if asks {
		pattern += regexp.QuoteMeta(question)
	}
	return regexp.MustCompile(pattern)
}

func TestWhatIsShownIsFound(t *testing.T) {
	for _, c := range []struct{ shown, said, missing string }{
		{"NAME  AGE\na     3 s\nb     4 s", "some text\nNAME   AGE\nlonger 9 d\n", ""},
		{"NAME  AGE\na     3 s", "NAME  SINCE\na  3 s\n", "NAME  AGE"},
		{"NAME  AGE\na     3 s", "NAME  AGE\n", "NAME  AGE"},
		{"NAME  AGE\na     3 s\nDone with 2.", "NAME  AGE\nx  1 s\nDone with 17.\n", ""},
		{"NAME  AGE\na     3 s\nDone with 2.", "NAME  AGE\nx  1 s\nReady with 17.\n", "Done with 2."},
		{"status   unknown", "status  parked", ""},
		{"status   unknown", "state   unknown", "status   unknown"},
		{`{"a":1,"b":[2]}`, "x\n" + `{"b":null,"a":"c"}`, ""},
		{`{"a":1,"b":[2]}`, `{"a":"c"}`, `{"a":1,"b":[2]}`},
		{`{"a":…}`, `{"a":…}`, `{"a":…}`},
		{"On prod (postgres://ops:xxxxx@db/shop): 13 checks, until 2026-11-23T00:09:46Z, go.",
			"On prod (postgres://me:xxxxx@[::1]:7/s?a=b): 2 checks, until 2027-01-23T00:09:46.123Z, go.", ""},
		{"13 checks, 2 findings", "13 checks, two findings", "13 checks, 2 findings"},
		{"Go on? [y/N] y\nDone.", "Go on? [y/N] Done.", ""},
		{"Go on? [y/N] y", "Go on? Done.", "Go on? [y/N] y"},
		{"  To do: Set it = on.", "a\n  To do: Set it = on.\n", ""},
		{"", "anything", ""},
	} {
		if got := missing(strings.Split(c.shown, "\n"), c.said); got != c.missing {
			t.Errorf("of %q in %q, %q is missing, want %q", c.shown, c.said, got, c.missing)
		}
	}
}
