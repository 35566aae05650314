package sim

import (
	"fmt"
	"strings"
)

// Story returns the lines of a history that lead to a broken law: what happened to
// what it is about, and to the whole world until then.
func (r *Result) Story(b Break) []Line {
	word := b.About
	if _, after, found := strings.Cut(word, "/"); found {
		word = after
	}
	word, _, _ = strings.Cut(word, " ")
	key, _, ordered := strings.Cut(word, "-")
	var lines []Line
	for _, l := range r.History {
		about := hasWord(l.About, word) || ordered && hasWord(l.About, key)
		if l.Who == "" && !l.isLaw || l.Nth == 0 && !l.isLaw || about || l.isLaw && l.At == b.At {
			lines = append(lines, l)
		}
		if l.At > b.At {
			break
		}
	}
	return lines
}

// hasWord reports whether a word, such as "k1-002", is among the objects of a call.
func hasWord(about, word string) bool {
	for _, part := range strings.FieldsFunc(about, func(r rune) bool { return strings.ContainsRune(" /,", r) }) {
		if part == word {
			return true
		}
	}
	return false
}

// Print returns a story as text.
func Print(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%.300s\n", l.String())
	}
	return b.String()
}
