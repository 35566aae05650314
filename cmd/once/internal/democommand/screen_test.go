package democommand

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

var sample = demo.Report{
	Orders: 30, Seed: 1, Seconds: 1.5,
	Without: demo.Side{Orders: 3, Answered: 3, Effects: 4, Duplicated: 1, DuplicateCharges: 1, OverchargedCents: 1205, Crashes: 2},
	With:    demo.Side{Orders: 3, Answered: 3, Effects: 3},
	Windows: []demo.Result{{Scenario: "race", Without: demo.Tally{Orders: 3, Doubled: 1}, With: demo.Tally{Orders: 3, Parked: 2}}},
}

// What does not fit on a terminal cannot be drawn over, and is told line by line.
func TestTableFits(t *testing.T) {
	for _, test := range []struct {
		width, height int
		err           error
		want          bool
	}{{80, 24, nil, true}, {79, 15, nil, true}, {78, 24, nil, false}, {80, 14, nil, false}, {0, 0, nil, true}, {0, 0, errors.New("no size"), true}} {
		if got := fits(test.width, test.height, test.err); got != test.want {
			t.Errorf("%d x %d: %v", test.width, test.height, got)
		}
	}
	s := new(screen)
	if text := s.table(sample, false) + "\n" + news("by hand", demo.Side{}) + news("with once", demo.Side{}); strings.Count(text, "\n") != tallest {
		t.Errorf("the table has not %d lines: %q", tallest, text)
	}
}

func TestTerminalTableIsRedrawnInPlace(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out, live: true}
	if err := s.progress(sample); err != nil {
		t.Fatal(err)
	}
	first := out.String()
	if strings.Contains(first, "\x1b") || strings.Contains(first, "lost") {
		t.Errorf("the first table goes back over what was there before, or knows what is lost: %q", first)
	}
	out.Reset()
	if err := s.final(sample); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(first, "\n"); lines != tallest || !strings.HasPrefix(out.String(), "\x1b[14A\x1b[Jseed 1") {
		t.Errorf("the second table is not over the %d lines of the first: %q", lines, out.String())
	}
	for _, want := range []string{"1 charge too many, customers overpaid 12.05", "  race                    1 of 3 doubled                2 of 3 parked", "orders lost"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

// No line of what is printed is wider than the terminal, which would break it within a
// word, and no word is missing.
func TestLinesAreAsWideAsTheTerminal(t *testing.T) {
	long := sample
	long.Without = demo.Side{Orders: 1234, Answered: 1230, Effects: 1500, DuplicateOrders: 120, DuplicateCharges: 270, DuplicatePoints: 99,
		DuplicateLetters: 160, OverchargedCents: 123456, Lost: 201, Crashes: 321}
	long.With = demo.Side{Orders: 1234, Answered: 1234, Effects: 1234, Parked: 123}
	long.Windows = append([]demo.Result{{Scenario: everything, Without: demo.Tally{Orders: 1085, Doubled: 460, Lost: 131, Parked: 1}, With: demo.Tally{Orders: 1085, Parked: 10}}}, sample.Windows...)
	texts := func(s *screen) (all []string) {
		for _, r := range []demo.Report{sample, long} {
			var out strings.Builder
			s.out, s.tenths, s.height = &out, 0, 0
			if err := errors.Join(s.progress(r), s.final(r)); err != nil {
				t.Fatal(err)
			}
			all = append(all, out.String())
		}
		all = append(all, s.wrap(intro, 0))
		for _, w := range demo.Windows {
			all = append(all, s.explain(w))
		}
		return all
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	whole := texts(&screen{width: 10_000})
	for _, width := range []int{40, 60, 80, 120} {
		for i, text := range texts(&screen{width: width}) {
			for line := range strings.SplitSeq(text, "\n") {
				if len(line) > width {
					t.Errorf("%d columns: a line has %d: %q", width, len(line), line)
				}
			}
			_, end, _ := strings.Cut(text, "By hand: ")
			if _, want, _ := strings.Cut(whole[i], "By hand: "); words(end) != words(want) || i > 1 && words(text) != words(whole[i]) {
				t.Errorf("%d columns: it has other words:\n%s\nthan\n%s", width, text, whole[i])
			}
		}
	}
}

func TestColor(t *testing.T) {
	for _, color := range []bool{true, false} {
		s := &screen{color: color}
		table := s.table(sample, true) + s.windows(sample)
		for _, marked := range []string{red + "         1" + plain, green + "         0" + plain, red + "1 of 3 doubled                " + plain, green + "2 of 3 parked" + plain} {
			if got := strings.Contains(table, marked); got != color {
				t.Errorf("color %v: %q is there: %v", color, marked, got)
			}
		}
	}
}

func TestNoTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if s := newScreen(null); s.live || s.color {
		t.Errorf("%s is taken for a terminal", os.DevNull)
	}
	var out strings.Builder
	s := &screen{out: &out}
	if err := errors.Join(s.progress(sample), s.progress(sample)); err != nil {
		t.Fatal(err)
	}
	want := "   3 orders  by hand: 2 killed, 1 doubled  with once: 0 killed, 0 doubled\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestNoOrders(t *testing.T) {
	if got := (&screen{color: true}).became(demo.Tally{}, 6); got != "none  " {
		t.Errorf("got %q", got)
	}
}

func TestFaultsAreRedAndTheirAbsenceGreen(t *testing.T) {
	s := &screen{color: true}
	for want, got := range map[string]string{
		red + "         3" + plain:   s.cell(3, true),
		green + "         0" + plain: s.cell(0, true),
		"         3":                 s.cell(3, false),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
