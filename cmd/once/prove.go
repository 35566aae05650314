package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/prove"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

type proveCommand struct {
	Run  proveRun  `cmd:"" default:"withargs" help:"Run a program under faults, and count its effects. The verb run can be left out."`
	Mark proveMark `cmd:"" help:"Mark a store for tests, so that once prove may run against it."`
}

type proveRun struct {
	storeFlags
	outputFlags

	Request      string   `placeholder:"REQUEST" help:"The request to send: its method and path, as in 'POST /orders'."`
	RequestsFrom string   `type:"path" placeholder:"FILE" help:"A file with a request in JSON on each line, instead of --request."`
	Body         string   `placeholder:"TEXT" help:"Body of the request."`
	Header       []string `sep:"none" placeholder:"'NAME: VALUE'" help:"A header of each request; repeatable. Default with a body: Content-Type: application/json."`
	KeyHeader    string   `default:"Idempotency-Key" placeholder:"NAME" help:"The header with the key (default Idempotency-Key)."`
	Count        []string `sep:"none" placeholder:"SQL" help:"A query that returns a row for each request: its ID, and how many effects it had; repeatable. NAME=SQL names it."`
	CountFrom    string   `placeholder:"URL" help:"The SQL database of the queries. Default: that of the store."`
	CountCommand []string `sep:"none" placeholder:"NAME=COMMAND" help:"A command that prints the same for the shell: an ID and a number for each request; repeatable."`

	Service string   `placeholder:"URL" help:"Where a copy of the program listens. Default: http://{{listen}}."`
	Copies  int      `placeholder:"N" help:"Copies of the program, 1 to 32. Default: 2, or 1 if --service is a fixed address."`
	Env     []string `sep:"none" placeholder:"NAME=VALUE" help:"A variable for the program; repeatable."`
	Cut     []string `sep:"none" placeholder:"NAME=HOST:PORT" help:"Another server of the program, whose connections are broken as well; repeatable."`
	Log     string   `type:"path" placeholder:"FILE" help:"Write the output of the program to this file."`

	Requests  *int          `placeholder:"N" help:"Requests in a round, each with its own ID. Default: 200, or the lines of the file."`
	Kills     int           `default:"10" placeholder:"N" help:"Copies killed in a round (default 10)."`
	Cuts      int           `default:"10" placeholder:"N" help:"In a round, how often all connections to a server are cut (default 10)."`
	Swallowed int           `default:"10" placeholder:"N" help:"Replies of servers that are swallowed in a round (default 10)."`
	Lost      *int          `placeholder:"N" help:"Replies of the program that its callers lose in a round. Default: 20, or one for each request."`
	Callers   int           `default:"8" placeholder:"N" help:"Callers who send requests at the same time, 1 to 256 (default 8)."`
	Seed      uint64        `default:"1" placeholder:"N" help:"Decides which request has which fault (default 1)."`
	For       time.Duration `placeholder:"DURATION" help:"Begin further rounds until this time is over. Default: one round."`
	Patience  time.Duration `default:"1m" placeholder:"DURATION" help:"Longest wait for a start, for an answer, and for progress in the end (default 1m)."`
	MayPark   bool          `help:"Keys and messages that wait for a person are what the program is meant to leave."`

	Command []string `arg:"" name:"program" passthrough:"" help:"The program and its arguments, after --."`
}

// Help is the long text of once prove run --help.
func (proveRun) Help() string {
	return `
Runs copies of your program against the store of the target, which must be marked for tests with once prove mark. Callers
send requests and repeat each until it is answered, sometimes to two copies at once, and each once more in the end.
Meanwhile copies are killed with SIGKILL and started again, connections to the servers are cut, and replies are swallowed
that the servers have sent. Then the faults stop, the program finishes what is left, and the command counts.

  {{id}}       in --request, --body, --header and in the file: the ID of the request, which is also its key
  {{listen}}   in the program's arguments, --env and --service: HOST:PORT on which a copy must listen
  {{port}}     the same without the host
  {{store}}    URL of the store through a proxy, which breaks connections; without the parameters of once
  {{address}}  its HOST:PORT, or the path of the file of SQLite
  {{NAME}}     HOST:PORT of the proxy of --cut NAME=HOST:PORT
  {{copy}}     the number of the copy, from 1

Servers that are reached through a proxy: PostgreSQL, MySQL, MariaDB, Redis and NATS, each as one server, and those of --cut.
TLS passes, but a certificate for the server's name is not one for 127.0.0.1.

A line of the file of --requests-from, whose members can all be left out. Those of --request, --body and --header fill in:

  {"method": "POST", "path": "/orders", "header": {"X-Shop": "a"}, "body": {"item": "{{id}}"}, "key": "{{id}}", "id": "{{id}}"}

A body that is a string is sent as that text, any other as JSON. The key goes into the header of the key. By its id, which is
the key by default, the counts know the request. Keys without {{id}} can be sent once to a database, in one round.

The command of --count-command may have the placeholders of servers, which name them without a proxy. It runs when all
copies have ended. White space separates what it prints, so 'redis-cli --raw hgetall orders' is one.

What must hold:

  an-answer      every request is answered in the end. 5xx, 408, 425, 429, and 409 with Retry-After ask for a repeat
  same-answer    every answer to a request is the same: status, Content-Type, Location and body
  one-effect     a request that was accepted with 2xx has one effect, by each --count
  no-effect      a request that was refused has none
  drains         when the faults stop, no key stays running, and no message waits in the outbox or for a consumer
  nobody-needed  no key or message waits for a person, unless --may-park

The report has a line for each sum. A finding names the request, and the command that shows its key. IDs begin with the name
of the run. Nothing that was there before is changed, and what the program writes stays. When the command ends, also by
Ctrl-C, so do all copies and what they started; only SIGKILL leaves them.

Exit status: 0 every law held, 1 one was broken, 2 wrong usage, or the store is not marked, 3 nothing was proved.

Examples:
  once prove mark --url sqlite:shop.db
  once prove --url sqlite:shop.db --request 'POST /orders' --body '{"item":"{{id}}"}' \
    --count 'SELECT item, count(*) FROM orders GROUP BY item' -- ./shop --db {{address}} --listen {{listen}}
  once prove --target test --requests-from orders.jsonl --count 'SELECT id, count(*) FROM orders GROUP BY id' \
    -- ./shop --db {{store}} --listen {{listen}}
  once prove --url redis://localhost:6379 --request 'POST /orders' --body '{"item":"{{id}}"}' \
    --count-command 'orders=redis-cli -u "{{store}}" --raw hgetall orders' -- ./shop --redis {{store}} --listen {{listen}}
  once prove --target test --env 'DATABASE_URL={{store}}' --env 'PORT={{port}}' --cut 'broker=127.0.0.1:5672' --for 10m \
    --env 'BROKER=amqp://{{broker}}/' --request 'POST /orders' --body '{"item":"{{id}}"}' -- ./shop`
}

const mostCopies, mostCallers, mostRequests = 32, 256, 1_000_000

// Validate is called by kong.
func (c *proveRun) Validate() error {
	for _, n := range []struct {
		flag        string
		value, from int
		to          int
	}{
		{"kills", c.Kills, 0, mostRequests}, {"cuts", c.Cuts, 0, mostRequests}, {"swallowed", c.Swallowed, 0, mostRequests},
		{"callers", c.Callers, 1, mostCallers}, {"copies", cmp.Or(c.Copies, 1), 1, mostCopies},
	} {
		if n.value < n.from || n.value > n.to {
			return fmt.Errorf("--%s is %d: use %d to %d", n.flag, n.value, n.from, n.to)
		}
	}
	switch {
	case c.Request == "" && c.RequestsFrom == "":
		return errors.New("there is no request: add --request 'POST /orders', or --requests-from FILE")
	case c.For < 0:
		return fmt.Errorf("--for is %v: use a time such as 10m", c.For)
	case c.Patience < time.Second:
		return fmt.Errorf("--patience is %v: use 1s or more", c.Patience)
	}
	return nil
}

// Run proves a program.
func (c *proveRun) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	marked, err := prove.IsMarked(ctx, s.Target)
	if err != nil {
		return err
	}
	if !marked {
		return usage("%s is not marked for tests, and the program would write to it. If it may: once prove mark%s", s, c.chosen(ctx))
	}
	o, err := c.options()
	if err != nil {
		return err
	}
	counted, err := c.database(ctx, s)
	switch {
	case err != nil:
		return err
	case counted != nil:
		o.Database = counted.Tables.DB
		if counted != s.Target {
			defer counted.Close()
		}
	}
	if c.Log != "" {
		f, err := os.Create(c.Log)
		if err != nil {
			return err
		}
		defer f.Close()
		o.Output = f
	}
	line := newProgress(c.outputFlags)
	o.Progress = func(text string) { line.say("%s", text) }
	r, err := prove.Run(ctx, s.Target, o)
	line.end()
	if err != nil {
		return err
	}
	if err := c.print(ctx, r); err != nil {
		return err
	}
	if !r.Right() {
		return errNo
	}
	return nil
}

// chosen are the flags with which the same store was named.
func (f storeFlags) chosen(ctx context.Context) string {
	switch {
	case f.URL != "":
		return " --url " + word(secret.From(ctx).Hide(string(f.URL)))
	case f.Target != "":
		return " --target " + word(string(f.Target))
	}
	return ""
}

// storeName is the placeholder of the store.
const storeName = "store"

func (c *proveRun) options() (o prove.Options, err error) {
	o = prove.Options{Command: slices.Clone(c.Command), Environment: c.Env, Service: cmp.Or(c.Service, "http://{{listen}}"),
		Copies: c.Copies, Words: map[string]string{}, Kills: c.Kills, Cuts: c.Cuts, Swallowed: c.Swallowed,
		Callers: c.Callers, Seed: c.Seed, For: c.For, Patience: c.Patience, MayPark: c.MayPark}
	if len(o.Command) > 0 && o.Command[0] == "--" {
		o.Command = o.Command[1:]
	}
	if len(o.Command) == 0 {
		return o, usage("there is no program: add -- ./program")
	}
	fixed := !strings.Contains(o.Service, "{{")
	if u, err := url.Parse(o.Service); fixed && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return o, usage("--service is %q: use a URL such as http://localhost:8080", c.Service)
	}
	if o.Copies == 0 {
		o.Copies = 2
		if fixed {
			o.Copies = 1
		}
	} else if fixed && o.Copies > 1 {
		return o, usage("--service is a fixed address, on which only one of %d copies can listen: use {{port}} in it, and give the program the port", o.Copies)
	}
	for _, e := range c.Env {
		if name, _, found := strings.Cut(e, "="); !found || name == "" {
			return o, usage("--env is %q: use NAME=VALUE", e)
		}
	}
	if err := c.addRequests(&o); err != nil {
		return o, err
	}
	if o.Counts, err = c.counts(); err != nil {
		return o, err
	}
	from, _, err := target.Choose(string(c.URL), string(c.Target))
	if err != nil {
		return o, err
	}
	place, err := target.PlaceOf(from)
	if err != nil {
		return o, err
	}
	if place.Passes {
		o.Servers = append(o.Servers, prove.Server{Name: storeName, Address: place.Address, Words: func(proxy string) map[string]string {
			return map[string]string{storeName: place.Through(proxy), "address": proxy}
		}})
	} else {
		o.Words[storeName], o.Words["address"] = place.Through(""), place.Address
	}
	return o, c.addServers(&o)
}

var serverName = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)

func (c *proveRun) addServers(o *prove.Options) error {
	taken := []string{"id", "listen", "port", "copy", "address", storeName}
	for _, cut := range c.Cut {
		name, address, _ := strings.Cut(cut, "=")
		host, port, err := net.SplitHostPort(address)
		switch {
		case !serverName.MatchString(name) || err != nil || host == "" || port == "":
			return usage("--cut is %q: use NAME=HOST:PORT", cut)
		case slices.Contains(taken, name):
			return usage("--cut %s: this placeholder is taken, choose another name", name)
		}
		taken = append(taken, name)
		o.Servers = append(o.Servers, prove.Server{Name: name, Address: address})
	}
	return nil
}

const defaultRequests, defaultLost = 200, 20

// addRequests adds the templates of the requests, and their number.
func (c *proveRun) addRequests(o *prove.Options) error {
	t, err := c.request()
	if err != nil {
		return err
	}
	o.Templates, o.Requests = []prove.Request{t}, defaultRequests
	if c.RequestsFrom != "" {
		text, err := os.ReadFile(c.RequestsFrom)
		if err != nil {
			return err
		}
		if o.Templates, err = prove.ReadRequests(filepath.Base(c.RequestsFrom), text, t); err != nil {
			return coded{exitUsage, err.Error()}
		}
		o.Requests = len(o.Templates)
	}
	if c.Requests != nil {
		o.Requests = *c.Requests
	}
	o.Lost = min(defaultLost, o.Requests)
	if c.Lost != nil {
		o.Lost = *c.Lost
	}
	switch {
	case o.Requests < 1 || o.Requests > mostRequests:
		return usage("--requests is %d: use 1 to %d", o.Requests, mostRequests)
	case o.Lost < 0 || o.Lost > o.Requests:
		return usage("--lost is %d: use 0 to %d", o.Lost, o.Requests)
	case c.For == 0 && o.Requests <= len(o.Templates):
		return nil
	}
	for i := range o.Templates {
		if t := &o.Templates[i]; !t.Fresh() {
			return usage("%s: its key or its id is the same each time, so it can be sent in one round only: write {{id}} into it, "+
				"or leave out --for and --requests", t.Place)
		}
	}
	return nil
}

// request returns the request of the flags.
func (c *proveRun) request() (r prove.Request, err error) {
	method, path, found := strings.Cut(c.Request, " ")
	if c.Request != "" && (!found || method == "" || !strings.HasPrefix(path, "/")) {
		return r, usage("--request is %q: use a method and a path, such as 'POST /orders'", c.Request)
	}
	r = prove.Request{Method: method, Path: path, Header: http.Header{}, Body: c.Body, KeyHeader: c.KeyHeader}
	for _, h := range c.Header {
		name, value, found := strings.Cut(h, ":")
		if !found || name == "" {
			return r, usage("--header is %q: use 'NAME: VALUE'", h)
		}
		r.Header.Add(name, strings.TrimSpace(value))
	}
	if c.Body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, nil
}

var namedCount = regexp.MustCompile(`(?s)^([A-Za-z][\w-]*)=(.*)$`)

func (c *proveRun) counts() (all []prove.Count, err error) {
	for i, text := range c.Count {
		count := prove.Count{Name: "effects", Query: text}
		if i > 0 {
			count.Name = fmt.Sprintf("effects %d", i+1)
		}
		if found := namedCount.FindStringSubmatch(text); found != nil {
			count.Name, count.Query = found[1], found[2]
		}
		if strings.TrimSpace(count.Query) == "" {
			return nil, usage("--count has no query: use 'SELECT id, count(*) FROM … GROUP BY id'")
		}
		all = append(all, count)
	}
	for _, text := range c.CountCommand {
		found := namedCount.FindStringSubmatch(text)
		if found == nil || strings.TrimSpace(found[2]) == "" {
			return nil, usage("--count-command is %q: use NAME=COMMAND", text)
		}
		all = append(all, prove.Count{Name: found[1], Command: found[2]})
	}
	return all, nil
}

// database opens the database of the counts.
func (c *proveRun) database(ctx context.Context, s *session) (*target.Target, error) {
	if len(c.Count) == 0 {
		return nil, nil
	}
	t := s.Target
	if c.CountFrom != "" {
		var err error
		if t, err = target.Open(ctx, c.CountFrom, nil); err != nil {
			return nil, err
		}
	}
	if t.Tables == nil {
		return nil, usage("%s is not an SQL database, so --count cannot ask it: add --count-from URL, or use --count-command", t)
	}
	return t, nil
}

func (c *proveRun) print(ctx context.Context, r prove.Report) error {
	if c.json() {
		return printJSON(r)
	}
	sums := newTable()
	for _, sum := range r.Sums() {
		sums.Row(sum.Name, fmt.Sprint(sum.Total), show.Prose(sum.Text()))
	}
	if err := sums.Print(os.Stdout); err != nil {
		return err
	}
	fmt.Println()
	laws := newTable("LAW", "BROKEN", "")
	for _, l := range prove.Laws {
		n := r.Broken(l.Name)
		state := "ok"
		if n > 0 {
			state = fmt.Sprint(n)
		}
		laws.Row(l.Name, state, l.Text)
	}
	if err := laws.Print(os.Stdout); err != nil {
		return err
	}
	return c.printFindings(ctx, r)
}

const shownFindings = 20

func (c *proveRun) printFindings(ctx context.Context, r prove.Report) error {
	for i, f := range r.Findings {
		if i == shownFindings {
			fmt.Printf("\n%d further findings: see -o json\n", len(r.Findings)-i)
			break
		}
		fmt.Printf("\n%s: %s: %s\n", f.Law, show.Line(f.Name()), show.Lines(secret.From(ctx).Hide(f.Text)))
		command := "once"
		for _, w := range f.Look {
			command += " " + word(show.Line(w))
		}
		fmt.Println("  " + command + c.chosen(ctx))
	}
	return nil
}

type proveMark struct {
	storeFlags
	Holding bool   `help:"Mark it although it holds keys or messages."`
	By      string `placeholder:"NAME" help:"Name of who marks it. Default: $$ONCE_BY, then your user name."`
	Yes     bool   `short:"y" help:"Skip confirmation."`
}

// Help is the long text of once prove mark --help.
func (proveMark) Help() string {
	return `
The mark says that programs may write to this database as they like, under faults, and that nobody needs what they leave
there. It is a key of the operation once-prove, and lasts 30 days. Nothing else reads it, and nothing is deleted. To take it
away: once keys forget once-prove mark --reason "it is needed".

A store that holds keys or messages may be one that somebody uses. It is marked only with --holding.

Examples:
  once prove mark --url sqlite:shop.db
  once prove mark --target test --holding

` + exitHelp
}

// Run marks a store.
func (c *proveMark) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	marked, err := prove.IsMarked(ctx, s.Target)
	if err != nil {
		return err
	}
	ask := changeFlags{By: c.By, Yes: c.Yes}
	by, err := ask.by()
	if err != nil {
		return err
	}
	if !marked {
		holds, err := prove.Contents(ctx, s.Target)
		if err != nil {
			return err
		}
		if holds != "" && !c.Holding {
			return usage("%s %s. If nobody needs them, and programs may write to it as they like: once prove mark --holding%s", s, holds, c.chosen(ctx))
		}
		if err := ask.confirm(ctx, s, "  The store is marked for tests for 30 days. Programs may write to it as they like, under faults."); err != nil {
			return err
		}
	}
	mark, err := prove.SetMark(ctx, s.Target, by)
	if err != nil {
		return err
	}
	fmt.Printf("Marked for tests by %s until %s. To take the mark away: once keys forget %s mark --reason TEXT%s\n",
		show.Line(mark.By), mark.Until.UTC().Format(time.RFC3339), prove.Operation, c.chosen(ctx))
	return nil
}
