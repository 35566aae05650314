package show

import (
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	table := &Table{Heading: []string{"STATUS", "ID"}, Color: true}
	table.Row("unknown", "häuser")
	table.Row("x", "a\x1b[2Jb\nc")
	var out strings.Builder
	if err := table.Print(&out); err != nil {
		t.Fatal(err)
	}
	table.Row("y", "")
	if err := table.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := "STATUS   ID\n" + yellow + "unknown" + plain + "  häuser\nx        \"a\\x1b[2Jb\\x0ac\"\ny  -\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 ms", 1500 * time.Millisecond: "1 s", 119 * time.Second: "119 s", 3 * time.Minute: "3 m",
		3 * time.Hour: "3 h", 47 * time.Hour: "47 h", 50 * time.Hour: "2 d",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%v) is %q, want %q", d, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	if got := string(Short(strings.Repeat("ü", 100))); len([]rune(got)) != longest || !strings.HasSuffix(got, "…") {
		t.Errorf("got %q", got)
	}
}
