package main

import (
	"context"
	"fmt"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/show"
)

type doctorCommand struct {
	storeFlags
	outputFlags
	FailOn string `enum:"unsafe,warning,note" default:"unsafe" help:"The least severity that is a no: unsafe, warning or note (default unsafe)."`
}

// Help is the long text of once doctor --help.
func (doctorCommand) Help() string {
	return `
It reads, and changes nothing. Each finding has a name, which docs/command.md explains, and a severity:

  unsafe   a promise does not hold: effects can be lost or doubled, or nothing works
  warning  somebody has to look
  note     it is good to know

It sees the server, the tables, and the settings of its own role. It cannot see how your programs connect.

Exit status: 0 nothing of that severity, 1 something, 2 wrong usage, 3 the database could not be asked.

Examples:
  once doctor
  once doctor --fail-on warning -o json | jq -r '.findings[].name'`
}

// doctorJSON is a report as JSON.
type doctorJSON struct {
	Target   string        `json:"target"`
	Engine   string        `json:"engine"`
	Safe     bool          `json:"safe"`
	Checks   []string      `json:"checks"`
	Findings []findingJSON `json:"findings"`
}

type findingJSON struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	What     string `json:"what"`
	Means    string `json:"means"`
	Do       string `json:"do"`
}

// Run examines a database.
func (c *doctorCommand) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	report, err := doctor.Examine(ctx, s.Target)
	if err != nil {
		return err
	}
	if err := c.print(s, report); err != nil {
		return err
	}
	least := doctor.Severity(c.FailOn)
	if report.Worst(least) {
		return errNo
	}
	return nil
}

func (c *doctorCommand) print(s *session, r doctor.Report) error {
	if c.json() {
		j := doctorJSON{s.String(), string(s.Engine), !r.Worst(doctor.Unsafe), r.Checks, []findingJSON{}}
		for _, f := range r.Findings {
			j.Findings = append(j.Findings, findingJSON{f.Name, string(f.Severity), f.What, f.Means, f.Do})
		}
		return printJSON(j)
	}
	for _, f := range r.Findings {
		fmt.Printf("%s %s: %s\n  %s\n  To do: %s\n\n", f.Severity, f.Name, show.Line(f.What), f.Means, f.Do)
	}
	verdict := "nothing unsafe was found"
	if r.Worst(doctor.Unsafe) {
		verdict = "it is not safe to work with"
	}
	if n := r.Unmade(); n > 0 {
		verdict += ", and " + show.Count(n, "check", "checks") + " could not be made"
	}
	_, err := fmt.Printf("%s: %s, %s, %s.\n", show.Line(s.String()), show.Count(len(r.Checks), "check", "checks"),
		show.Count(len(r.Findings), "finding", "findings"), verdict)
	return err
}
