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
	FailOn string `enum:"unsafe,warning,note" default:"unsafe" help:"Exit 1 on findings of this severity or worse: unsafe, warning or note."`
}

// Help is the long text of once doctor --help.
func (doctorCommand) Help() string {
	return `
Examines a database and its brokers without changing them. Each finding has a name, which docs/command.md lists, and
a severity:

  unsafe   a promise does not hold: effects can be lost or doubled, or nothing works
  warning  needs attention
  note     for information

doctor sees the server, the tables, and the settings of its own role. It cannot see how your programs connect.

With --broker it also examines a broker and compares it with the consumers registered in the database. Without a
database it examines only the broker. It examines what the registered consumers read or, if there are none, everything.
--only selects by name instead.

  nats://user:password@host:4222     NATS JetStream; hosts separated by commas; tls://; ?creds=FILE
  kafka://host:9092,host:9092        ?tls=true; with user and password, ?sasl=plain, scram-sha-256 or scram-sha-512
  redis://user:password@host:6379    Redis Streams; rediss://; ?cluster=true, or with Sentinels ?master_name=NAME
  pubsub://project                   Google Pub/Sub, with the credentials of the environment; ?endpoint=HOST:PORT
  sqs://region                       Amazon SQS, with the credentials of the environment; ?endpoint=URL; with
                                     ?topics=arn:aws:sns:REGION:ACCOUNT: also topics of SNS
  servicebus://name:key@host         Azure Service Bus, with a shared access key that has the right Manage, or without one and
                                     with the credentials of the environment
  eventhubs://name:key@host/hub,hub  Azure Event Hubs; hubs that registered consumers read need not be named
  https://user:password@host:15671/vhost    RabbitMQ through its management plugin
  amqps://user:password@host:5671/vhost     RabbitMQ over AMQP, which shows few settings of queues

Exit status: 0 no finding of the --fail-on severity or worse, 1 findings, 2 wrong usage, 3 the database or a broker cannot be reached.

Examples:
  once doctor
  once doctor --config once.toml
  once doctor --broker 'nats://ops:${NATS_PASSWORD}@nats.internal:4222'
  once doctor --fail-on warning -o json | jq -r '.findings[].name'`
}

// doctorJSON is the JSON form of the findings. Target is empty if no database was
// examined.
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

// Run examines a database and brokers.
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
	verdict := "found nothing unsafe"
	if r.Worst(doctor.Unsafe) {
		verdict = "found something unsafe"
	}
	if n := r.Unmade(); n > 0 {
		verdict += ", and " + show.Count(n, "check", "checks") + " could not run"
	}
	_, err := fmt.Printf("%s: %s, %s, %s.\n", show.Text(r.of), show.Count(len(r.Checks), "check", "checks"),
		show.Count(len(r.Findings), "finding", "findings"), verdict)
	return err
}
