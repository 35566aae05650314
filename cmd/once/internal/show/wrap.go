package show

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// anyWidth is used for files, and for terminals that do not say how wide they are.
const anyWidth = 80

// Width returns the number of columns of a terminal: $COLUMNS, or what the terminal
// says. It is 80 for other files.
func Width(f *os.File) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
		return n
	}
	return anyWidth
}

var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// columns is the number of columns that a text takes, which has no wide characters.
func columns(text string) int { return utf8.RuneCountInString(color.ReplaceAllString(text, "")) }

// Wrap breaks the lines of a text that are wider than width, between words. What
// follows is indented by hang columns. A word that is wider than that is not broken.
func Wrap(text string, width, hang int) string {
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		wrapLine(&b, line, width, hang)
	}
	return b.String()
}

func wrapLine(b *strings.Builder, line string, width, hang int) {
	if columns(line) <= width {
		b.WriteString(line)
		return
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	b.WriteString(line[:indent])
	at, begun := indent, false
	for word, gap := range words(line[indent:]) {
		n := columns(word)
		if begun && at+gap+n > width {
			b.WriteString("\n" + strings.Repeat(" ", hang))
			at, gap = hang, 0
		}
		b.WriteString(strings.Repeat(" ", gap) + word)
		at, begun = at+gap+n, true
	}
}

// words calls yield with the words of a line, and the number of spaces before each.
func words(line string) func(yield func(word string, gap int) bool) {
	return func(yield func(string, int) bool) {
		for line != "" {
			rest := strings.TrimLeft(line, " ")
			gap := len(line) - len(rest)
			word, _, _ := strings.Cut(rest, " ")
			if word == "" || !yield(word, gap) {
				return
			}
			line = rest[len(word):]
		}
	}
}
