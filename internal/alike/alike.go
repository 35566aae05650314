// Package alike groups failures: two reasons are alike if they are equal once what
// varies from message to message is taken out of them.
//
// It rather tells two reasons apart than takes them for one, because people act on a
// group: what was not meant must not be in it. So words without a digit stay, and so do the
// codes of HTTP, SQL and exit statuses.
package alike

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/effectively-once/once/internal/name"
)

const (
	longest = 200          // bytes of a text
	enough  = longest + 10 // bytes, of which writeTaken may take back the last one
	taken   = "…"          // stands for what was taken out
)

// Text returns what a reason has in common with those that are alike: its first line,
// shortened, in which "…" stands for words with digits, such as ids, numbers and times,
// and for mail addresses. [name.UnknownOutcome] stays in front, and is in front of no
// other.
func Text(reason string) string {
	rest, unknown := strings.CutPrefix(reason, name.UnknownOutcome)
	text := common(firstLine(rest))
	if unknown {
		return name.UnknownOutcome + text
	}
	if strings.HasPrefix(text, name.UnknownOutcome) { // it has other spaces than the prefix
		return taken + " " + text
	}
	return text
}

// ID returns a name for a text that can be in a URL and in a log, which a reason must
// not be: it may be sealed in the store.
func ID(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:idBytes])
}

const idBytes = 8

// IsID reports whether a text has the form of an ID.
func IsID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == idBytes && strings.ToLower(id) == id
}

// firstLine returns the first line of a text that has something on it.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// common takes out of a line what varies.
func common(line string) string {
	var b strings.Builder
	last := "" // the word before, for which a number may be a code
	for field := range strings.FieldsSeq(line) {
		if b.Len() >= enough {
			break
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		if strings.HasPrefix(field, "sealed:") { // it cannot be opened here
			b.WriteString("sealed:" + taken)
			last = ""
			continue
		}
		last = writeField(&b, field, last)
	}
	return cut(b.String())
}

// writeField writes what a field without spaces has in common with others. It returns
// the last word of the field. A field in which thousands of parts are taken out as one
// is not read to its end.
func writeField(b *strings.Builder, field, last string) string {
	for parts := 0; len(field) > 0 && b.Len() < enough && parts < enough; parts++ {
		n := strings.IndexFunc(field, func(r rune) bool { return !inWord(r) })
		if n < 0 {
			n = len(field)
		}
		if n == 0 {
			_, size := utf8.DecodeRuneInString(field)
			b.WriteString(strings.ToValidUTF8(field[:size], "\uFFFD"))
			field = field[size:]
			continue
		}
		word := strings.TrimRight(field[:n], "-")
		if word == "" {
			word = field[:n]
		}
		field = field[len(word):]
		switch {
		case !varies(word), isCode(last, word):
			b.WriteString(word)
		default:
			writeTaken(b)
		}
		last = word
	}
	return last
}

// writeTaken writes that something was taken out. What has several parts, such as a
// decimal number, a time or an address, is taken out as one.
func writeTaken(b *strings.Builder) {
	text := b.String()
	if n := len(text) - 1; n > 0 && strings.IndexByte(".:,", text[n]) >= 0 && strings.HasSuffix(text[:n], taken) {
		b.Reset()
		b.WriteString(text[:n])
		return
	}
	b.WriteString(taken)
}

// inWord reports whether a character is of a word. A mail address is one word.
func inWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_' || r == '@'
}

func varies(word string) bool {
	return strings.ContainsFunc(word, unicode.IsDigit) || strings.Contains(strings.Trim(word, "@"), "@")
}

// isCode reports whether a word says what went wrong, and not to whom: 503 after
// status, or 42P01 after SQLSTATE.
func isCode(before, word string) bool {
	if len(word) > 5 || strings.ContainsAny(word, "-_@") {
		return false
	}
	switch strings.ToLower(before) {
	case "status", "code", "http", "error", "errno", "sqlstate", "exit":
		return true
	}
	return false
}

// cut shortens a text.
func cut(text string) string {
	if len(text) <= longest {
		return text
	}
	n := longest
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Groups counts failures that are alike. The zero value has none.
type Groups struct {
	of    map[string]*Group // by text
	Count int               // of all failures
}

// Group is a number of failures that are alike.
type Group struct {
	ID, Text       string
	Count          int
	Oldest, Newest time.Time // of their changes
	Consumers      []string  // in order; empty: there are more than fewConsumers, or none
	many           bool
}

const fewConsumers = 3

// Add counts a failure, which changed at a time, and returns the ID of its group. The
// consumer may be empty.
func (g *Groups) Add(reason, consumer string, changed time.Time) (id string) {
	if g.of == nil {
		g.of = make(map[string]*Group)
	}
	g.Count++
	text := Text(reason)
	of := g.of[text]
	if of == nil {
		of = &Group{ID: ID(text), Text: text, Oldest: changed, Newest: changed}
		g.of[text] = of
	}
	of.Count++
	if changed.Before(of.Oldest) {
		of.Oldest = changed
	}
	if changed.After(of.Newest) {
		of.Newest = changed
	}
	of.sees(consumer)
	return of.ID
}

func (g *Group) sees(consumer string) {
	if consumer == "" || g.many {
		return
	}
	at, known := slices.BinarySearch(g.Consumers, consumer)
	switch {
	case known:
	case len(g.Consumers) == fewConsumers:
		g.Consumers, g.many = nil, true
	default:
		g.Consumers = slices.Insert(g.Consumers, at, consumer)
	}
}

// Largest returns the groups, the largest first.
func (g *Groups) Largest() []Group {
	all := make([]Group, 0, len(g.of))
	for _, of := range g.of {
		all = append(all, *of)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(b.Count-a.Count, a.Oldest.Compare(b.Oldest), strings.Compare(a.Text, b.Text))
	})
	return all
}
