package show

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Line is a name on one line, as it is if it shows all that is in it. Else it is quoted: whatever a terminal would obey or
// not show is written as an escape, so that names which look alike are shown apart. An empty one is a dash, so that
// columns stay.
func Line(s string) string {
	switch text := escape(s, ""); {
	case s == "":
		return "-"
	case text != s, s == "-", strings.HasPrefix(s, `"`), strings.TrimSpace(s) != s, strings.Contains(s, "  "):
		return quote(s)
	}
	return s
}

// Quote is a name in quotes.
func Quote(s string) string { return quote(s) }

func quote(s string) string {
	return `"` + escape(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s), "") + `"`
}

// Prose is a text on one line, in which nothing has to be told apart.
type Prose string

// Text is a text on one line. What a terminal would obey is escaped; a dash is an empty one.
func Text(s string) Prose {
	if s = escape(strings.Join(strings.Fields(s), " "), ""); s == "" {
		return "-"
	}
	return Prose(s)
}

const longest = 72

// Short is a Text for the last column of a table.
func Short(s string) Prose {
	text := Text(s)
	if utf8.RuneCountInString(string(text)) <= longest {
		return text
	}
	return Prose([]rune(text)[:longest-1]) + "…"
}

// Lines is a text of several lines, with what a terminal would obey escaped.
func Lines(s string) string { return escape(s, "\n\t") }

// Body writes untrusted bytes: unchanged to a file or a pipe, escaped as Lines to a terminal, which would obey them.
func Body(to *os.File, body []byte) error {
	if term.IsTerminal(int(to.Fd())) {
		text := Lines(string(body))
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		body = []byte(text)
	}
	_, err := to.Write(body)
	return err
}

// JSON writes a value on one line. What a terminal would obey or not show is escaped, which is the same to a program.
func JSON(to io.Writer, v any) error {
	e := json.NewEncoder(EscapedJSON(to))
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// EscapedJSON returns a writer of JSON. In JSON, characters that are not ASCII are in strings only.
func EscapedJSON(to io.Writer) io.Writer { return jsonWriter{to} }

type jsonWriter struct{ to io.Writer }

func (w jsonWriter) Write(text []byte) (int, error) {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r == '\n' || visible(r):
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := io.WriteString(w.to, b.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// escape writes what is not visible, or looks like something else, as in a string of Go, but for the characters to keep.
func escape(s, keep string) string {
	var b strings.Builder
	word := 0 // where the word begins that r is in
	for at := 0; at < len(s); {
		r, size := utf8.DecodeRuneInString(s[at:])
		if !unicode.In(r, unicode.L, unicode.M) {
			word = at + size
		}
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[at])
		case strings.ContainsRune(keep, r), r < utf8.RuneSelf && visible(r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case !visible(r), unicode.Is(unicode.Mn, r) && composes(s[word:at]), alike[r] && mistakable(s[word:]):
			if r > 0xffff {
				fmt.Fprintf(&b, `\U%08x`, r)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		default:
			b.WriteRune(r)
		}
		at += size
	}
	return b.String()
}

// visible reports whether a character leaves something on the screen, and nothing else.
func visible(r rune) bool {
	return unicode.IsPrint(r) && r != '\u2800' &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// composes reports whether a mark after a text makes what there is as one character, too, or belongs to nothing.
func composes(before string) bool {
	for before != "" {
		r, size := utf8.DecodeLastRuneInString(before)
		if !unicode.Is(unicode.Mn, r) {
			return unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic)
		}
		before = before[:len(before)-size]
	}
	return true
}

// alike are letters that look like those of ASCII.
var alike = func() map[rune]bool {
	letters := map[rune]bool{}
	for _, r := range "асеорхуіјѕһԁԛԝӏАВЕКМНОРСТХУІЈЅ" + "οανιρυχκΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "օսոցհ" {
		letters[r] = true
	}
	return letters
}()

// mistakable reports whether the word that a text begins with is of ASCII and such letters only.
func mistakable(text string) bool {
	for _, r := range text {
		switch {
		case !unicode.In(r, unicode.L, unicode.M):
			return true
		case r >= utf8.RuneSelf && !alike[r]:
			return false
		}
	}
	return true
}
