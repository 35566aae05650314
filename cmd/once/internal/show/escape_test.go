package show

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLineShowsAllThatIsInAName(t *testing.T) {
	for name, want := range map[string]string{
		"order-4711":         "order-4711",
		"häuser 4711":        "häuser 4711",
		"заказ-4711":         "заказ-4711",
		"注文 4711":            "注文 4711",
		"हिन्दी":             "हिन्दी",
		`a"b\n`:              `a"b\n`,
		"":                   "-",
		"-":                  `"-"`,
		`"a"`:                `"\"a\""`,
		"a ":                 `"a "`,
		" a":                 `" a"`,
		"a  b":               `"a  b"`,
		"a\u00a0b":           `"a\u00a0b"`,
		"a\u200bb":           `"a\u200bb"`,
		"a\u202eb":           `"a\u202eb"`,
		"a\u3164":            `"a\u3164"`,
		"a\ufe0f":            `"a\ufe0f"`,
		"a\u2800":            `"a\u2800"`,
		"a\U000e0061":        `"a\U000e0061"`,
		"cafe\u0301":         `"cafe\u0301"`,
		"p\u0430y":           `"p\u0430y"`,
		"\u0440\u0430\u0443": `"\u0440\u0430\u0443"`,
		"a\x1b[2J\nb":        `"a\x1b[2J\x0ab"`,
		"a\u009b2Jb":         `"a\u009b2Jb"`,
		"a\xff":              `"a\xff"`,
		"a\ufffd":            "a\ufffd",
		"a\x7f":              `"a\x7f"`,
		`a\x7f` + "\t":       `"a\\x7f\x09"`,
	} {
		if got := Line(name); got != want {
			t.Errorf("Line(%q) is %s, want %s", name, got, want)
		}
	}
}

// Names that differ are shown apart, whatever is in them, and a terminal has nothing to obey.
func FuzzLine(f *testing.F) {
	f.Add("a", "a ")
	f.Add("a\u200b", `a\u200b`)
	f.Add("\"a\\x1b\"", "a\x1b")
	f.Add("-", "")
	f.Add("a\xff", `"a\xff"`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if a != b && Line(a) == Line(b) {
			t.Errorf("%q and %q are both %s", a, b, Line(a))
		}
		for _, shown := range []string{Line(a), Quote(a), string(Text(a)), string(Short(a)), strings.ReplaceAll(strings.ReplaceAll(Lines(a), "\n", ""), "\t", "")} {
			if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q is shown as %q", a, shown)
			}
		}
		var text bytes.Buffer
		var back string
		valid := strings.ToValidUTF8(a, "")
		if err := JSON(&text, valid); err != nil || json.Unmarshal(text.Bytes(), &back) != nil || back != valid {
			t.Errorf("%q is %s as JSON, and %q again: %v", valid, &text, back, err)
		}
		if strings.ContainsFunc(strings.TrimSuffix(text.String(), "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is %q as JSON", valid, &text)
		}
	})
}

func TestBodyIsRawInAFile(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "body"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := Body(file, []byte("a\x1b[2J\xff")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != "a\x1b[2J\xff" {
		t.Errorf("%q %v", got, err)
	}
}
