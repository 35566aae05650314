package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/serve"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/console"
)

type consoleCommand struct {
	Target      []chosen `complete:"target" sep:"none" placeholder:"NAME" help:"Target, see once context. Give it again for further ones: work is followed through all of them. Default: $$ONCE_TARGET, then the current target."`
	URL         chosen   `name:"url" placeholder:"URL" help:"URL of the database. $${NAME} is replaced by that environment variable."`
	Listen      string   `default:"127.0.0.1:9470" placeholder:"HOST:PORT" help:"Address of the console. Default: 127.0.0.1:9470. Another machine can reach it only if you name another address, which needs --people or --proxy."`
	Write       bool     `help:"Allow changes. Default: the console is read-only."`
	People      string   `type:"path" placeholder:"FILE" help:"TOML file of the people who may use it, see below. Default: one token for this run, which is printed."`
	Host        []string `sep:"none" placeholder:"NAME" help:"Host name by which browsers reach it, without a port. Others are refused. Default: localhost, and that of --listen."`
	HTTPS       bool     `name:"https" help:"Browsers reach it by HTTPS only, through a proxy that ends TLS."`
	ProxyHeader string   `placeholder:"NAME" help:"Header in which an authenticating proxy says who it is. The proxy must remove it from what it receives."`
	Proxy       []string `sep:"none" placeholder:"ADDRESS" help:"Address or network of that proxy. The header is ignored from any other address."`
	Config      string   `short:"c" type:"path" placeholder:"FILE" help:"Configuration file of once serve: people can ask the URLs in [[reconcile.operation]] about unknown keys, and its broker is asked as with --broker. For one database."`
	Broker      []string `sep:"none" placeholder:"URL" help:"URL of a broker to ask how many messages wait for the registered consumers, as once doctor takes it; repeatable. $${NAME} is replaced by that environment variable."`
	Trace       string   `placeholder:"TEMPLATE" help:"URL of a trace, to which the page of a key links. {key}, {scope}, {operation} and {id} are replaced."`

	Report map[string]string `mapsep:"none" placeholder:"NAME=FILE" help:"Report of another system that people may compare with the keys, besides those that they upload. Give it again for further ones."`
}

// Help is the long text of once console --help.
func (consoleCommand) Help() string {
	return `
Shows stores in a browser: what needs a person now, and where any unit of work stands and how it got there. With
--write, people settle such work there, with a reason. It runs until SIGTERM or SIGINT.

Without --people and --proxy, one token is made for this run and printed. Whoever has it may look, and with --write may
do everything, under your name ($ONCE_BY, then your user name).

Roles: look (see keys and messages), decide (see answers, settle unknown and parked keys), administer (have work that is
done run again). Above look, a role changes something only with --write. The file of --people:

  [[people]]
  name = "ann"
  role = "decide"
  token = "${ANN_TOKEN}"  # at least 20 random characters; without one, only the proxy lets ann in

With --proxy-header, people that the proxy knows and the file does not are refused, or have the role of the line
others = "look" at the beginning of the file. Without a file they may look.

With --config, people can ask the URLs of that file about unknown keys, as once unknown ask does. The database is --url
or --target, then the url in the file, then the current target.

With --broker, and for the broker of that file, the overview and the pages of consumers show how many messages wait at
the broker. It need not be reachable when the console starts. That is for the URLs of once doctor that begin with
nats://, tls://, kafka://, redis://, rediss://, sqs://, amqp://, amqps://, servicebus:// and eventhubs://. Pub/Sub does not
tell, and the management plugin of RabbitMQ is not asked. For logs of NATS and Event Hubs, the messages after the
positions in the database count.

The console speaks HTTP. For other machines, let a proxy speak HTTPS, and add --https.

Exit status: 0 graceful shutdown, 2 wrong usage or configuration, 3 failure.

Examples:
  once console
  once console --target prod --target billing --write
  once console --config once.toml --write
  once console --url sqlite:/var/lib/shop/shop.db --trace 'https://traces.example/search?once.key={key}'
  once console --broker 'amqps://ops:${AMQP_PASSWORD}@rabbit.internal:5671/shop'
  once console --report charges=/var/lib/shop/charges.csv
  once console --listen 10.0.0.5:9470 --host ops.example --https --people people.toml
  once console --proxy-header X-Forwarded-User --proxy 127.0.0.1 --host ops.example --https --people people.toml`
}

var consoleWords = consoleserver.Words{Listen: "--listen", Hosts: "--host", People: "--people", Proxy: "--proxy-header", Trace: "--trace"}

// Run serves until it is interrupted.
func (c *consoleCommand) Run(ctx context.Context) error {
	config, token, err := c.config(ctx)
	if err != nil {
		return err
	}
	asked, err := c.asked(ctx)
	if err != nil {
		return err
	}
	lag, endLag, err := c.lag(ctx, asked)
	if err != nil {
		return err
	}
	defer endLag()
	stores, end, err := c.open(ctx)
	defer end()
	if err != nil {
		return err
	}
	if asked != nil {
		by, err := asked.Reconcile.Asker()
		if err != nil {
			return err
		}
		defer by.Close()
		if stores[0].Ask, err = asked.Reconcile.Questions(by, stores[0].Store); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewTextHandler(secret.From(ctx).Writer(os.Stderr), nil))
	server, err := consoleserver.New(ctx, config, stores, lag, log, consoleWords)
	if err != nil {
		return err
	}
	fmt.Println("Console:", server.URL())
	if token != "" {
		fmt.Println("Token:  ", token) // never in the URL, which browsers and proxies keep
		note("Sign in with the token, which is valid until this program ends.")
	}
	if !c.Write {
		note("The console is read-only: add --write to allow changes.")
	}
	return server.Run(ctx)
}

// config returns the configuration, and the token of this run, if there is one.
func (c *consoleCommand) config(ctx context.Context) (config consoleserver.Config, token string, err error) {
	config = consoleserver.Config{Listen: c.Listen, Write: c.Write, HTTPS: c.HTTPS, Hosts: c.Host, Trace: c.Trace, Reports: c.Report}
	others := ""
	if c.People != "" {
		people, err := consoleserver.Load(ctx, c.People)
		if err != nil {
			return config, "", err
		}
		config.People, others = people.People, people.Others
	}
	switch {
	case c.ProxyHeader != "" && len(c.Proxy) > 0:
		config.Proxy = &consoleserver.Proxy{Header: c.ProxyHeader, Role: others}
		for _, text := range c.Proxy {
			var at consoleserver.Address
			if err := at.UnmarshalText([]byte(text)); err != nil {
				return config, "", usage("--proxy: %v", err)
			}
			config.Proxy.From = append(config.Proxy.From, at)
		}
		if c.People == "" {
			if c.Write {
				return config, "", usage("--write with a proxy needs --people: it names those who may change something")
			}
			config.Proxy.Role = console.Look.String()
		}
	case c.ProxyHeader != "" || len(c.Proxy) > 0:
		return config, "", usage("--proxy-header and --proxy need each other: anybody else could send that header")
	case others != "":
		return config, "", usage("%s has a role for others, whom only a proxy knows: add --proxy-header and --proxy", c.People)
	case c.People == "":
		if !consoleserver.Loopback(c.Listen) {
			return config, "", usage("--listen is %s, which other machines may reach: add --people FILE, or --proxy-header and --proxy", c.Listen)
		}
		by, err := (&changeFlags{}).by()
		if err != nil {
			return config, "", usage("your user name could not be determined: set ONCE_BY, or add --people")
		}
		role := console.Look
		if c.Write {
			role = console.Administer
		}
		token = newToken()
		config.People = []consoleserver.Person{{Name: by, Role: role.String(), Token: token}}
	}
	return config, token, nil
}

func newToken() string {
	var raw [24]byte
	rand.Read(raw[:]) // never fails: it ends the program instead
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// asked returns the configuration of whom people can ask, or nil. It chooses the
// database of that file if no other is named.
func (c *consoleCommand) asked(ctx context.Context) (*serve.Config, error) {
	if c.Config == "" {
		return nil, nil
	}
	if len(c.Target) > 1 || len(c.Target) == 1 && c.URL != "" {
		return nil, usage("--config is for one database: its URLs are asked about the keys of that")
	}
	config, err := serve.Load(ctx, c.Config)
	if err != nil {
		return nil, err
	}
	if c.URL == "" && len(c.Target) == 0 {
		c.URL = chosen(config.URL)
	}
	return &config, nil
}

// lag returns what the console asks for the lag of consumers, or nil. end ends the
// connections.
func (c *consoleCommand) lag(ctx context.Context, asked *serve.Config) (lag consoleserver.Lag, end func(), err error) {
	brokers := c.Broker
	if asked != nil {
		named, err := asked.Brokers(secret.From(ctx))
		if err != nil {
			return nil, nil, err
		}
		brokers = append(brokers, named...)
	}
	if len(brokers) == 0 {
		return nil, func() {}, nil
	}
	from, err := doctor.OpenSources(ctx, brokers)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range from.Mute() {
		note("%s does not tell how many messages wait for a consumer", name)
	}
	return consoleserver.LagOf(ctx, from), from.Close, nil
}

// reachTime limits the look at the tables of a store before it is shown.
const reachTime = 3 * time.Second

// open opens the stores. A store that does not answer may come back, but one whose
// tables do not fit is refused. end closes those that are open.
func (c *consoleCommand) open(ctx context.Context) (stores []console.Store, end func(), err error) {
	var open []*target.Target
	end = func() {
		for _, t := range open {
			t.Close()
		}
	}
	names := c.Target
	if c.URL != "" || len(names) == 0 {
		names = append([]chosen{""}, names...)
	}
	for i, name := range names {
		from := ""
		if i == 0 {
			from = string(c.URL)
		}
		from, called, err := target.Choose(from, string(name))
		if err != nil {
			return nil, end, err
		}
		t, err := target.Open(ctx, from, nil)
		if err != nil {
			return nil, end, err
		}
		open = append(open, t)
		store := consoleserver.Store(t, called)
		store.Doctor = consoleserver.Doctor(ctx, t)
		if err := fits(ctx, t); err != nil {
			return nil, end, fmt.Errorf("%s: %w", store.Name, err)
		}
		stores = append(stores, store)
	}
	return stores, end, nil
}

// fits returns what is permanently wrong with the tables of a target.
func fits(ctx context.Context, t *target.Target) error {
	if t.Tables == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	schema, err := t.Tables.Schema(ctx)
	switch {
	case err != nil:
		note("%s does not answer yet: %s", t, secret.From(ctx).Hide(strings.TrimSpace(err.Error())))
		return nil
	case schema.Misfit != nil:
		return fmt.Errorf("%w: run once migrate up or once migrate sql", schema.Misfit)
	}
	return nil
}
