package name_test

import (
	"testing"

	"github.com/effectively-once/once/internal/name"
)

func TestALineIsFitForAHeader(t *testing.T) {
	for text, want := range map[string]string{
		"":                 "",
		"short":            "short",
		"two\r\nlines":     "two  lines",
		"bad\x00\xff":      "bad ?",
		"ten bytes and so": "ten bytes ",
		"nine byteé":       "nine byte",
	} {
		if got := name.Line(text, 10); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
