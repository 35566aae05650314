package show

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/effectively-once/once/internal/legible"
)

// Line formats a name on one line, see [legible.Line].
func Line(s string) string { return legible.Line(s) }

// Quote quotes a name.
func Quote(s string) string { return legible.Quote(s) }

// Prose formats a text on one line without telling similar characters apart.
type Prose string

// Text formats a text on one line with control characters escaped. An empty
// text is a dash.
func Text(s string) Prose { return Prose(legible.Text(s)) }

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
func Lines(s string) string { return legible.Lines(s) }

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
		case r == '\n' || legible.Visible(r):
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
