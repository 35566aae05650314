// Package show prints tables and ages for people, without control characters
// from a database.
package show

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/effectively-once/once/internal/legible"
)

// IsScreen reports whether a file is a terminal whose lines can be overwritten.
func IsScreen(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" }

// Colors reports whether a file is a terminal that gets colours.
func Colors(f *os.File) bool {
	return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == ""
}

const (
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	green  = "\x1b[32m"
	plain  = "\x1b[0m"
)

// paints are the colours of cells by their text.
var paints = map[string]string{
	"unknown": yellow, "parked": red, "stuck": red, "done": green, "handled": green, "held": yellow,
	"unsafe": red, "warning": yellow, "ok": green,
}

// Table is an aligned table. The zero value has no heading.
type Table struct {
	Heading []string // printed unless there are no rows
	Color   bool
	rows    [][]string
}

// Row adds a row. A cell is a string, formatted by [Line], or a [Prose].
func (t *Table) Row(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		if text, ok := cell.(Prose); ok {
			row[i] = string(text)
		} else {
			row[i] = Line(fmt.Sprint(cell))
		}
	}
	t.rows = append(t.rows, row)
}

// Print prints the rows added since the last Print. The first rows come with
// the heading.
func (t *Table) Print(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	rows := t.rows
	if len(t.Heading) > 0 {
		rows = append([][]string{t.Heading}, rows...)
	}
	widths := make([]int, 0, 8)
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			text := cell
			if paint := paints[cell]; paint != "" && t.Color {
				text = paint + cell + plain
			}
			b.WriteString(text)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteString("\n")
	}
	t.Heading, t.rows = nil, nil
	_, err := io.WriteString(w, b.String())
	return err
}

// Span formats a duration in its largest unit.
func Span(d time.Duration) string { return legible.Span(d) }

// Ago formats how long ago something was.
func Ago(d time.Duration) string { return legible.Ago(d) }

// Bytes formats a size in its largest unit.
func Bytes(n int64) string { return legible.Bytes(n) }

// Count formats a number with its noun: 1 key, 2 keys.
func Count[N int | int64](n N, one, many string) string { return legible.Count(n, one, many) }
