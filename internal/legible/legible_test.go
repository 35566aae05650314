package legible_test

import (
	"testing"
	"unicode"

	"github.com/effectively-once/once/internal/legible"
)

func TestNamesThatDifferAreShownApart(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range []string{"", "-", "pay", "p\u0430y", "pay ", " pay", "pay\u200b", "p\u202eay", `"pay"`, "pay\x1b[2J", `pay\x1b[2J`, "pay\xff"} {
		line := legible.Line(name)
		if other, taken := seen[line]; taken {
			t.Errorf("%q and %q are both shown as %s", name, other, line)
		}
		seen[line] = name
		for _, r := range line {
			if !unicode.IsPrint(r) {
				t.Errorf("%q is shown as %q", name, line)
			}
		}
	}
}

func TestTextIsOneLine(t *testing.T) {
	if got := legible.Text(" a\n\tb\x1b "); got != `a b\x1b` {
		t.Errorf("got %q", got)
	}
	if got := legible.Lines("a\nb\u202e"); got != "a\nb\\u202e" {
		t.Errorf("got %q", got)
	}
}
