package democommand

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/effectively-once/once/cmd/once/internal/demo"
	"github.com/effectively-once/once/cmd/once/internal/show"
)

// screen shows the progress of a demo. A terminal gets a table that is updated
// in place; other outputs get a line for each tenth of the run.
type screen struct {
	out    io.Writer
	live   bool
	color  bool
	width  int // in columns; 0: 80
	height int // of the table on the screen
	tenths int // already reported
}

func newScreen(out *os.File) *screen {
	live := show.IsScreen(out) && fits(term.GetSize(int(out.Fd())))
	return &screen{out: out, live: live, color: live && os.Getenv("NO_COLOR") == "", width: show.Width(out)}
}

// columns is the width of what is printed.
func (s *screen) columns() int { return cmp.Or(s.width, usual) }

// wrap breaks lines between words. Later ones begin below the given column.
func (s *screen) wrap(text string, hang int) string { return show.Wrap(text, s.columns(), hang) }

// explain says what a scenario shows.
func (s *screen) explain(w demo.Window) string { return s.wrap(w.Explain(), len("  with once  ")) }

// fits reports whether the table fits, because lines that scrolled off cannot
// be redrawn. Some terminals do not report their size.
func fits(width, height int, err error) bool {
	return err != nil || width == 0 || height == 0 || width > widest && height > tallest
}

const linesAfter = 1000 // orders of a run that ends by the clock

func (s *screen) progress(r demo.Report) error {
	if s.live {
		text := s.table(r, false) + "\n" + news("by hand", r.Without) + news("with once", r.With)
		_, err := io.WriteString(s.out, s.over(text))
		return err
	}
	done, all := min(r.Without.Answered, r.With.Answered), r.Orders
	if all == 0 {
		all = linesAfter
	}
	if tenths := 10 * done / all; tenths > s.tenths && (tenths < 10 || r.Orders == 0) {
		s.tenths = tenths
		line := fmt.Sprintf("%4d orders  by hand: %s  with once: %s\n", done, short(r.Without), short(r.With))
		_, err := io.WriteString(s.out, s.wrap(line, len("   3 orders  ")))
		return err
	}
	return nil
}

func short(s demo.Side) string {
	return fmt.Sprintf("%d killed, %d doubled", s.Crashes, s.Duplicated)
}

const (
	usual   = 80 // columns
	widest  = 78 // longer lines would wrap on a narrow terminal and break the redraw
	tallest = 14 // of the table and its news
)

// news returns the latest event of a side.
func news(side string, s demo.Side) string {
	line := fmt.Sprintf("  %-9s  %s", side, s.News())
	if len(line) > widest {
		line = line[:widest-3] + "..."
	}
	return strings.TrimRight(line, " ") + "\n"
}

func (s *screen) final(r demo.Report) error {
	text := s.over(s.table(r, true)) + "\n" + s.windows(r) + "\n" + s.verdict(r) + "\n\n" + s.wrap(next, 0)
	if r.Directory != "" {
		text += "Kept: " + r.Directory + "\n"
	}
	_, err := io.WriteString(s.out, text)
	return err
}

// verdict explains the numbers.
func (s *screen) verdict(r demo.Report) string { return s.wrap(r.Verdict(), len("With once: ")) }

const intro = "Two shops take the same orders, one written by hand and one with once. Meanwhile customers click twice, " +
	"replies are lost, messages are delivered again, the broker fails, and processes are killed. Every order, charge, point or " +
	"letter beyond the first is a duplicate.\n\n"

const next = "Next: run once demo --scenario list, or read the two shops: without.go and with.go in cmd/once/internal/demo.\n"

// over returns text that overwrites the previous table on a terminal.
func (s *screen) over(text string) string {
	back := ""
	if s.height > 0 {
		back = fmt.Sprintf("\x1b[%dA\x1b[J", s.height)
	}
	if s.live {
		s.height = strings.Count(text, "\n")
	}
	return back + text
}

// table omits losses until the end, because messages in flight are not lost
// yet.
func (s *screen) table(r demo.Report, last bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %.1f s\n\n", r.Seed, r.Seconds)
	name := "  %-22s"
	if s.columns() < len("  ")+22+2*10 {
		name = "%-20s"
	}
	fmt.Fprintf(&b, name+"%10s%10s\n", "", "by hand", "with once")
	row := func(of string, without, with int, fault bool) {
		fmt.Fprintf(&b, name+"%s%s\n", of, s.cell(without, fault), s.cell(with, fault))
	}
	row("orders acknowledged", r.Without.Answered, r.With.Answered, false)
	row("processes killed", r.Without.Crashes, r.With.Crashes, false)
	row("broker outages", r.Without.Outages, r.With.Outages, false)
	row("duplicate orders", r.Without.DuplicateOrders, r.With.DuplicateOrders, true)
	row("duplicate charges", r.Without.DuplicateCharges, r.With.DuplicateCharges, true)
	row("duplicate points", r.Without.DuplicatePoints, r.With.DuplicatePoints, true)
	row("duplicate letters", r.Without.DuplicateLetters, r.With.DuplicateLetters, true)
	row("letters parked", r.Without.Parked, r.With.Parked, false)
	if last {
		row("orders lost", r.Without.Lost, r.With.Lost, true)
	}
	return b.String()
}

// windows prints the result of each window: in a line, or in three where a line is
// too short.
func (s *screen) windows(r demo.Report) string {
	var table, list strings.Builder
	fmt.Fprintf(&table, "  %-22s  %-30s%s\n", "scenario", "by hand", "with once")
	for _, w := range r.Windows {
		fmt.Fprintf(&table, "  %-22s  %s%s\n", w.Scenario, s.became(w.Without, 30), s.became(w.With, 0))
		fmt.Fprintf(&list, "  %s\n    by hand    %s\n    with once  %s\n", w.Scenario, s.became(w.Without, 0), s.became(w.With, 0))
	}
	if s.wrap(table.String(), 0) == table.String() {
		return table.String()
	}
	return s.wrap(list.String(), len("    with once  "))
}

// became formats the result of a window and marks it if it is wrong.
func (s *screen) became(t demo.Tally, width int) string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{t.Doubled, "doubled"}, {t.Lost, "lost"}, {t.Parked, "parked"}} {
		if p.n > 0 {
			of := ""
			if len(parts) == 0 {
				of = fmt.Sprintf(" of %d", t.Orders)
			}
			parts = append(parts, fmt.Sprintf("%d%s %s", p.n, of, p.what))
		}
	}
	if t.Orders == 0 { // its time was up before
		return fmt.Sprintf("%-*s", width, "none")
	}
	text, color := fmt.Sprintf("%d of %d correct", t.Orders, t.Orders), green
	if len(parts) > 0 {
		text = strings.Join(parts, ", ")
	}
	if t.Doubled+t.Lost > 0 {
		color = red
	}
	text = fmt.Sprintf("%-*s", width, text)
	if s.color {
		return color + text + plain
	}
	return text
}

const (
	red   = "\x1b[31m"
	green = "\x1b[32m"
	plain = "\x1b[0m"
)

// cell marks a number that should be zero.
func (s *screen) cell(n int, fault bool) string {
	text := fmt.Sprintf("%10d", n)
	switch {
	case !s.color || !fault:
		return text
	case n > 0:
		return red + text + plain
	default:
		return green + text + plain
	}
}
