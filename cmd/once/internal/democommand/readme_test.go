package democommand

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

// What the README shows as the end of the demo is what the demo prints for a run with these numbers, to the letter.
func TestReadmeShowsWhatTheDemoPrints(t *testing.T) {
	text, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "It ends like this:\n\n```\n")
	block, _, found := strings.Cut(block, "\n```\n")
	if !found {
		t.Fatal("the README does not show how the demo ends")
	}
	var shown demo.Report
	names := []string{"everything"}
	for _, w := range demo.Windows {
		names = append(names, w.Name)
	}
	row := regexp.MustCompile(`(?m)^  (\S+) {2,}(.+?) {2,}(.+)$`)
	for _, cells := range row.FindAllStringSubmatch(block, -1) {
		if slices.Contains(names, cells[1]) {
			shown.Windows = append(shown.Windows, demo.Result{Scenario: cells[1], Without: tally(t, cells[2]), With: tally(t, cells[3])})
		}
	}
	if len(shown.Windows) < 3 {
		t.Fatalf("the README shows %d windows", len(shown.Windows))
	}
	numbers := regexp.MustCompile(`(?s)With once: (\d+) orders.* (\d+)\s+letters\s+are\s+parked`).FindStringSubmatch(block)
	if numbers == nil {
		t.Fatal("the README shows no verdict")
	}
	orders, parked := number(t, numbers[1]), number(t, numbers[2])
	shown.With = demo.Side{Orders: orders, Answered: orders, Effects: orders, Parked: parked}
	_, verdict, _ := strings.Cut(new(screen).verdict(shown), "\nWith once: ")
	verdict = "With once: " + verdict
	if want := new(screen).windows(shown) + "  ...\n" + verdict; block != want {
		t.Errorf("the README shows\n%s\nand the demo prints\n%s", block, want)
	}
	all := 0
	for _, w := range shown.Windows {
		all += w.With.Parked
	}
	if all > parked {
		t.Errorf("the README shows %d letters parked, and %d in its windows", parked, all)
	}
}

// tally reads what became of orders.
func tally(t *testing.T, cell string) (c demo.Tally) {
	t.Helper()
	for _, part := range regexp.MustCompile(`(\d+)(?: of (\d+))? (correct|doubled|lost|parked)`).FindAllStringSubmatch(cell, -1) {
		if part[2] != "" {
			c.Orders = number(t, part[2])
		}
		n := number(t, part[1])
		switch part[3] {
		case "doubled":
			c.Doubled = n
		case "lost":
			c.Lost = n
		case "parked":
			c.Parked = n
		}
	}
	if new(screen).became(c, 0) != cell {
		t.Errorf("%q is not what a demo prints", cell)
	}
	return c
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
