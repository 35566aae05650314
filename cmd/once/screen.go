package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

// screen shows a demo. On a terminal, one table changes in place; elsewhere, a line tells of every tenth.
type screen struct {
	out    io.Writer
	live   bool
	color  bool
	height int // lines of the table that is being shown
	tenths int // that a line has told of
}

func newScreen(out *os.File) *screen {
	live := term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
	return &screen{out: out, live: live, color: live && os.Getenv("NO_COLOR") == ""}
}

func (s *screen) progress(r demo.Report) {
	if s.live {
		io.WriteString(s.out, s.redraw(r))
		return
	}
	done := min(r.Without.Deliveries, r.With.Deliveries)
	if tenths := 10 * done / max(r.Deliveries, 1); tenths > s.tenths && tenths < 10 {
		s.tenths = tenths
		fmt.Fprintf(s.out, "%3d%%  without: %s  with: %s\n", 10*tenths, short(r.Without), short(r.With))
	}
}

func short(s demo.Side) string {
	return fmt.Sprintf("%d crashes, %d effects, %d duplicated, %d lost", s.Crashes, s.Effects, s.Duplicated, s.Lost)
}

func (s *screen) final(r demo.Report) error {
	text := s.redraw(r) + "\n" + r.Verdict() + "\n\n" + next
	if r.Directory != "" {
		text += "Kept: " + r.Directory + "\n"
	}
	_, err := io.WriteString(s.out, text)
	return err
}

const next = "Next: read the two handlers, without.go and with.go in cmd/once/internal/demo.\n"

// redraw is the table, over the one before it.
func (s *screen) redraw(r demo.Report) string {
	table := s.table(r)
	back := ""
	if s.height > 0 {
		back = fmt.Sprintf("\x1b[%dA\x1b[J", s.height)
	}
	if s.live {
		s.height = strings.Count(table, "\n")
	}
	return back + table
}

func (s *screen) table(r demo.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d orders, %d deliveries, %d workers to kill, seed %d, %.1f s\n\n",
		r.Orders, r.Deliveries, r.Crashes, r.Seed, r.Seconds)
	fmt.Fprintf(&b, "  %-12s%10s%10s\n", "", "without", "with once")
	s.row(&b, "deliveries", r.Without.Deliveries, r.With.Deliveries, false)
	s.row(&b, "crashes", r.Without.Crashes, r.With.Crashes, false)
	s.row(&b, "effects", r.Without.Effects, r.With.Effects, false)
	s.row(&b, "duplicated", r.Without.Duplicated, r.With.Duplicated, true)
	s.row(&b, "  charges", r.Without.DuplicateCharges, r.With.DuplicateCharges, true)
	s.row(&b, "  bookings", r.Without.DuplicateBookings, r.With.DuplicateBookings, true)
	s.row(&b, "lost", r.Without.Lost, r.With.Lost, true)
	return b.String()
}

// row marks numbers that should be zero.
func (s *screen) row(b *strings.Builder, name string, without, with int, fault bool) {
	fmt.Fprintf(b, "  %-12s%s%s\n", name, s.cell(without, fault), s.cell(with, fault))
}

const (
	red   = "\x1b[31m"
	green = "\x1b[32m"
	plain = "\x1b[0m"
)

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
