// Package legible formats names, texts, ages and sizes for people. What it returns
// has no control characters and no characters that mislead, whoever chose the text.
package legible

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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

// Text formats a text on one line with control characters escaped. It does not
// tell similar words apart by quotes. An empty text is a dash.
func Text(s string) string {
	if s = escape(strings.Join(strings.Fields(s), " "), ""); s == "" {
		return "-"
	}
	return s
}

// Lines formats a text of several lines with control characters escaped.
func Lines(s string) string { return escape(s, "\n\t") }

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
		case strings.ContainsRune(keep, r), r < utf8.RuneSelf && Visible(r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case !Visible(r), unicode.Is(unicode.Mn, r) && composes(s[word:at]), alike[r] && mistakable(s[word:]):
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

// Visible reports whether a character has a visible form and no other effect.
func Visible(r rune) bool {
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

// Span formats a duration in its largest unit.
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d m", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	}
}

// Ago formats how long ago something was.
func Ago(d time.Duration) string { return Span(d) + " ago" }

// Bytes formats a size in its largest unit.
func Bytes(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(unit.size), unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Count formats a number with its noun: 1 key, 2 keys.
func Count[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
