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

// Line formats a name on one line. It quotes a name that does not show all of
// its characters: control characters and look-alikes are escaped, so that
// different names look different. An empty name is a dash, which keeps the
// columns.
func Line(s string) string {
	switch text := escape(s, ""); {
	case s == "":
		return "-"
	case text != s, s == "-", strings.HasPrefix(s, `"`), strings.TrimSpace(s) != s, strings.Contains(s, "  "):
		return quote(s)
	}
	return s
}

// Quote quotes a name.
func Quote(s string) string { return quote(s) }

func quote(s string) string {
	return `"` + escape(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s), "") + `"`
}

// Prose formats a text on one line without telling similar characters apart.
type Prose string

// Text formats a text on one line with control characters escaped. An empty
// text is a dash.
func Text(s string) Prose {
	if s = escape(strings.Join(strings.Fields(s), " "), ""); s == "" {
		return "-"
	}
	return Prose(s)
}

const longest = 72

// Short is Text, shortened for the last column of a table.
func Short(s string) Prose {
	text := Text(s)
	if utf8.RuneCountInString(string(text)) <= longest {
		return text
	}
	return Prose([]rune(text)[:longest-1]) + "…"
}

// Lines formats a text of several lines with control characters escaped.
func Lines(s string) string { return escape(s, "\n\t") }

// Body writes untrusted bytes: unchanged to a file or a pipe, escaped to a
// terminal.
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

// JSON writes a value on one line. It escapes control and invisible characters,
// which means the same to a program.
func JSON(to io.Writer, v any) error {
	e := json.NewEncoder(EscapedJSON(to))
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// EscapedJSON returns a writer of JSON. In JSON, only strings contain
// characters outside ASCII.
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

// escape escapes invisible and misleading characters as in Go strings, except
// those to keep.
func escape(s, keep string) string {
	var b strings.Builder
	word := 0 // start of the current word
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

// visible reports whether a character has a visible form and no other effect.
func visible(r rune) bool {
	return unicode.IsPrint(r) && r != '\u2800' &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// composes reports whether a mark after a text has a precomposed form, or
// belongs to no character.
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

// alike are letters that look like ASCII letters.
var alike = func() map[rune]bool {
	letters := map[rune]bool{}
	for _, r := range "асеорхуіјѕһԁԛԝӏАВЕКМНОРСТХУІЈЅ" + "οανιρυχκΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "օսոցհ" {
		letters[r] = true
	}
	return letters
}()

// mistakable reports whether the first word of a text has only ASCII letters
// and look-alikes.
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
