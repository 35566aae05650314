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
	brokerFlags
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

With --broker, it looks at a broker, too, and compares it with what the database knows of its consumers; if no database
is chosen, at the broker alone. It looks at what these consumers read, if there are any, else at all that there is:
--only says what instead.

  nats://user:password@host:4222     NATS JetStream; several hosts with commas between them; tls://; ?creds=FILE
  kafka://host:9092,host:9092        ?tls=true; with a user and a password, ?sasl=plain, scram-sha-256 or scram-sha-512
  https://user:password@host:15671/vhost    RabbitMQ, by its management plugin
  amqps://user:password@host:5671/vhost     RabbitMQ without it: next to nothing of how queues are made is seen

Exit status: 0 nothing of that severity, 1 something, 2 wrong usage, 3 the database or a broker could not be asked.

Examples:
  once doctor
  once doctor --config once.toml
  once doctor --broker 'nats://ops:${NATS_PASSWORD}@nats.internal:4222'
  once doctor --fail-on warning -o json | jq -r '.findings[].name'`
}

// doctorJSON is what was found as JSON. Without a database, there is no target.
type doctorJSON struct {
	Target   string        `json:"target"`
	Engine   string        `json:"engine"`
	Safe     bool          `json:"safe"`
	Checks   []string      `json:"checks"`
	Brokers  []brokerJSON  `json:"brokers,omitempty"`
	Findings []findingJSON `json:"findings"`
}

type brokerJSON struct {
	Broker string   `json:"broker"`
	Checks []string `json:"checks"`
}

type findingJSON struct {
	Broker   string `json:"broker,omitempty"`
	Name     string `json:"name"`
	Severity string `json:"severity"`
	What     string `json:"what"`
	Means    string `json:"means"`
	Do       string `json:"do"`
}

// Run examines a database, and brokers.
func (c *doctorCommand) Run(ctx context.Context) error {
	s, all, err := c.examine(ctx)
	if err != nil {
		return err
	}
	if err := c.print(s, all); err != nil {
		return err
	}
	least := doctor.Severity(c.FailOn)
	for _, r := range all {
		if r.Worst(least) {
			return errNo
		}
	}
	return nil
}

func (c *doctorCommand) print(s *session, all []examined) error {
	if c.json() {
		return printJSON(jsonOf(s, all))
	}
	for i, r := range all {
		if i > 0 {
			fmt.Println()
		}
		if err := printReport(r); err != nil {
			return err
		}
	}
	return nil
}

func jsonOf(s *session, all []examined) doctorJSON {
	j := doctorJSON{Safe: true, Checks: []string{}, Findings: []findingJSON{}}
	if s != nil {
		j.Target, j.Engine = s.String(), string(s.Engine)
	}
	for _, r := range all {
		j.Safe = j.Safe && !r.Worst(doctor.Unsafe)
		of := ""
		if r.broker {
			of = r.of
			j.Brokers = append(j.Brokers, brokerJSON{r.of, r.Checks})
		} else {
			j.Checks = r.Checks
		}
		for _, f := range r.Findings {
			j.Findings = append(j.Findings, findingJSON{of, f.Name, string(f.Severity), f.What, f.Means, f.Do})
		}
	}
	return j
}

func printReport(r examined) error {
	for _, f := range r.Findings {
		fmt.Printf("%s %s: %s\n  %s\n  To do: %s\n\n", f.Severity, f.Name, show.Text(f.What), f.Means, f.Do)
	}
	verdict := "nothing unsafe was found"
	if r.Worst(doctor.Unsafe) {
		verdict = "it is not safe to work with"
	}
	if n := r.Unmade(); n > 0 {
		verdict += ", and " + show.Count(n, "check", "checks") + " could not be made"
	}
	_, err := fmt.Printf("%s: %s, %s, %s.\n", show.Text(r.of), show.Count(len(r.Checks), "check", "checks"),
		show.Count(len(r.Findings), "finding", "findings"), verdict)
	return err
}
