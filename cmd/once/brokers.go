package main

import (
	"context"
	"errors"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/serve"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// brokerFlags select the brokers to examine.
type brokerFlags struct {
	Broker []string `sep:"none" placeholder:"URL" help:"URL of a broker to examine as well; repeatable. $${NAME} is replaced by that environment variable."`
	Only   string   `placeholder:"PATTERN" help:"Examine only streams, topics and queues with these names, for example order.*."`
	Config string   `short:"c" type:"path" placeholder:"FILE" help:"Configuration file of once serve. Examine its database and the broker that it publishes to."`
}

// asked returns the selected brokers and the database of the configuration.
func (f *brokerFlags) asked(ctx context.Context) (brokers []string, database string, err error) {
	brokers = f.Broker
	if f.Config == "" {
		return brokers, "", nil
	}
	config, err := serve.Load(ctx, f.Config)
	if err != nil {
		return nil, "", err
	}
	named, err := config.Brokers(secret.From(ctx))
	if err != nil {
		return nil, "", err
	}
	return append(brokers, named...), config.URL, nil
}

// examined is a report on a database or a broker.
type examined struct {
	of string
	doctor.Report
	broker bool
}

// examine reports on the selected database, if any, and on the brokers. It fails
// if one of them cannot be reached.
func (c *doctorCommand) examine(ctx context.Context) (s *session, all []examined, err error) {
	urls, database, err := c.asked(ctx)
	if err != nil {
		return nil, nil, err
	}
	if c.Only != "" && len(urls) == 0 {
		return nil, nil, usage("--only selects parts of a broker: add --broker")
	}
	flags := c.storeFlags
	if flags.URL == "" && flags.Target == "" {
		flags.URL = chosen(database)
	}
	var brokers []*doctor.Broker
	defer func() {
		for _, b := range brokers {
			b.Close()
		}
	}()
	for _, url := range urls {
		b, err := doctor.Dial(ctx, url)
		if err != nil {
			return nil, nil, err
		}
		brokers = append(brokers, b)
	}
	var t *target.Target
	switch s, err = flags.open(ctx); {
	case errors.Is(err, target.ErrNoneChosen) && len(brokers) > 0:
		s = nil
	case err != nil:
		return nil, nil, err
	default:
		defer s.Close()
		report, err := doctor.Examine(ctx, s.Target)
		if err != nil {
			return nil, nil, err
		}
		all, t = append(all, examined{s.String(), report, false}), s.Target
	}
	for _, b := range brokers {
		report, err := doctor.ExamineBroker(ctx, b, t, c.Only)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, examined{b.String(), report, true})
	}
	return s, all, nil
}
