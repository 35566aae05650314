package main

import (
	"os"
	"strings"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

var sample = demo.Report{
	Orders: 3, Deliveries: 100, Crashes: 2, Seed: 1, Seconds: 1.5,
	Without: demo.Side{Deliveries: 30, Effects: 4, Duplicated: 1, DuplicateCharges: 1, OverchargedCents: 1205},
	With:    demo.Side{Deliveries: 10, Effects: 3},
}

func TestTerminalTableIsRedrawnInPlace(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out, live: true}
	s.progress(sample)
	first := out.String()
	if strings.Contains(first, "\x1b") {
		t.Errorf("the first table goes back over what was there before: %q", first)
	}
	out.Reset()
	if err := s.final(sample); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(first, "\n"); lines != 10 || !strings.HasPrefix(out.String(), "\x1b[10A\x1b[J"+first) {
		t.Errorf("the second table is not over the %d lines of the first: %q", lines, out.String())
	}
	if !strings.Contains(out.String(), "1 charge too many, customers are out 12.05") {
		t.Errorf("no verdict: %q", out.String())
	}
}

func TestColor(t *testing.T) {
	for _, color := range []bool{true, false} {
		s := &screen{color: color}
		table := s.table(sample)
		if got := strings.Contains(table, red+"         1"+plain); got != color {
			t.Errorf("color %v: duplicates are red: %v", color, got)
		}
		if got := strings.Contains(table, green+"         0"+plain); got != color {
			t.Errorf("color %v: zeros are green: %v", color, got)
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
	s.progress(sample)
	s.progress(sample)
	want := " 10%  without: 0 crashes, 4 effects, 1 duplicated, 0 lost  with: 0 crashes, 3 effects, 0 duplicated, 0 lost\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
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
