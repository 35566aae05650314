package show

import (
	"os"
	"strings"
	"testing"
)

func TestWrapBreaksBetweenWords(t *testing.T) {
	for _, test := range []struct {
		text        string
		width, hang int
		want        string
	}{
		{"fits", 4, 2, "fits"},
		{"one two three", 7, 2, "one two\n  three"},
		{"one two three", 8, 0, "one two\nthree"},
		{"name:   one two", 11, 8, "name:   one\n        two"},
		{"  in a line", 7, 4, "  in a\n    line"},
		{"a-word-that-is-too-long b", 5, 1, "a-word-that-is-too-long\n b"},
		{"two\nlines of text", 8, 1, "two\nlines of\n text"},
		{red + "one two" + plain + " 3", 9, 0, red + "one two" + plain + " 3"},
		{"één twee", 8, 0, "één twee"},
		{"", 1, 1, ""},
	} {
		if got := Wrap(test.text, test.width, test.hang); got != test.want {
			t.Errorf("%q at %d: %q, want %q", test.text, test.width, got, test.want)
		}
	}
}

func TestWidthIsThatOfTheEnvironmentOr80(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for columns, want := range map[string]int{"": 80, "40": 40, "0": 80, strings.Repeat("9", 40): 80, "-3": 80} {
		t.Setenv("COLUMNS", columns)
		if got := Width(file); got != want {
			t.Errorf("COLUMNS=%s: %d, want %d", columns, got, want)
		}
	}
}
