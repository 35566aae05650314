package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/asking"
	"github.com/effectively-once/once/cmd/once/internal/serve"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/name"
)

// endpointFlags say whom to ask.
type endpointFlags struct {
	Config string `short:"c" type:"path" placeholder:"FILE" help:"The configuration of once serve, which has the URLs in [[reconcile.operation]]."`

	At          string         `placeholder:"URL" help:"The URL to ask; $${NAME} in it is a variable of the environment. It needs --settle."`
	SecretFrom  chosen         `placeholder:"NAME" help:"The variable of the environment that has the secret for --at (default ONCE_ASK_SECRET)."`
	Settle      *span          `placeholder:"TIME" help:"How long after its end an attempt can still arrive there: until then, not_found is no answer. 0s: not at all."`
	KeyValidFor span           `placeholder:"TIME" help:"How long the other system honours a key: after that, not_found parks."`
	Allow       []netip.Prefix `placeholder:"CIDR" help:"A network that may be connected to although it is not public."`
	AllowHTTP   bool           `name:"allow-http" help:"--at may begin with http: whoever is on the way can answer."`
}

const defaultSecret = "ONCE_ASK_SECRET"

func (f *endpointFlags) validate() error {
	switch {
	case (f.Config == "") == (f.At == ""):
		return errors.New("say whom to ask: --config, or --at")
	case f.Config != "" && (f.SecretFrom != "" || f.Settle != nil || f.KeyValidFor != 0 || len(f.Allow) > 0 || f.AllowHTTP):
		return errors.New("--secret-from, --settle, --key-valid-for, --allow and --allow-http belong to --at: the file has its own")
	case f.At != "" && f.Settle == nil:
		return errors.New("--at needs --settle: how long after its end can an attempt still arrive there?")
	}
	return nil
}

// configuration is that of once serve, as the file or the flags say. With --at, it is that of the operation that is chosen.
func (f *endpointFlags) configuration(ctx context.Context, of string) (serve.Config, error) {
	if f.Config != "" {
		return serve.Load(ctx, f.Config)
	}
	return serve.Config{Reconcile: serve.Reconcile{Allow: f.Allow, AllowHTTP: f.AllowHTTP, Operations: []serve.Operation{{
		Name: of, Ask: f.At, Secrets: []string{"${" + cmp.Or(string(f.SecretFrom), defaultSecret) + "}"}, Settle: (*serve.Duration)(f.Settle),
		KeyValidFor: serve.Duration(f.KeyValidFor)}}}}, nil
}

// operations are those that can be asked about, by name.
func operations(r *serve.Reconcile) (*asking.Asker, map[string]asking.Operation, error) {
	by, err := r.Asker()
	if err != nil {
		return nil, nil, err
	}
	all, err := r.Asked(by)
	if err != nil {
		return nil, nil, err
	}
	named := make(map[string]asking.Operation)
	for _, op := range all {
		named[op.Name] = op
	}
	return by, named, nil
}

type unknownAsk struct {
	storeFlags
	outputFlags
	endpointFlags

	Operation chosen  `arg:"" optional:"" help:"The operation, or step, whose keys to ask about; with --config, all by default."`
	ID        chosen  `arg:"" optional:"" name:"id" help:"The ID of the one key to ask about."`
	Scope     *string `placeholder:"TEXT" help:"Of this scope; for one key, the empty one is the default."`
	Limit     int     `default:"100" placeholder:"N" help:"How many keys at most, up to 1000 (default 100)."`

	Apply  bool   `help:"Settle what the answers decide. It needs --reason."`
	Reason string `placeholder:"TEXT" help:"Why the answers are to be believed. It is kept with what is changed."`
	By     string `placeholder:"NAME" help:"Who decides. Default: $$ONCE_BY, then your name on this machine."`
	Yes    bool   `short:"y" help:"Do not ask you."`
}

func (c *unknownAsk) change() *changeFlags { return &changeFlags{c.Reason, c.By, c.Yes} }

// Validate is called by kong.
func (c *unknownAsk) Validate() error {
	switch {
	case c.Limit < 1 || c.Limit > 1000:
		return fmt.Errorf("--limit is %d: give 1 to 1000", c.Limit)
	case c.At != "" && c.Operation == "":
		return errors.New("say which operation can be asked about at that URL")
	case !c.Apply && (c.Reason != "" || c.By != "" || c.Yes):
		return errors.New("--reason, --by and --yes belong to --apply: without it, nothing is changed")
	}
	if err := c.validate(); err != nil || !c.Apply {
		return err
	}
	return c.change().Validate()
}

// Help is the long text of once unknown ask --help.
func (unknownAsk) Help() string {
	return `
Asks the URL of an operation what became of unknown keys, as once serve does, and shows the answers: docs/asking.md has
the question, and what can be answered. The database is that of --url or --target, else the url of the file of --config,
else the one in use. Nothing is changed unless --apply is given; then it is what the answers decide, and
nothing else:

  done, rejected   the key is done, with the result of the answer
  not_found        the key is free, if the settle time has passed, and parked, if the key is not honoured any more
  all others       the key stays unknown

Examples:
  once unknown ask --config once.toml
  once unknown ask --config once.toml pay/charge order-4711
  once unknown ask pay/charge --at https://shop.example/once --settle 10m --secret-from SHOP_SECRET
  once unknown ask --config once.toml --apply --reason "the provider is back, ticket 88"

` + exitHelp
}

// asked is a key, and what was found out about it.
type asked struct {
	asking.Finding
	applied bool
}

// becomes is what the key becomes, or has become.
func (a *asked) becomes() string {
	if s := a.Settlement; s.Status == once.Absent {
		return "free"
	} else if s.Status == once.Done && s.Outcome.Rejected {
		return "rejected"
	}
	return a.Settlement.Status.String()
}

// askedJSON is one of them as JSON.
type askedJSON struct {
	Scope     string  `json:"scope"`
	Operation string  `json:"operation"`
	ID        string  `json:"id"`
	Key       string  `json:"key"`
	Attempt   int64   `json:"attempt"`
	Unknown   float64 `json:"unknown_seconds"`
	Answer    string  `json:"answer,omitempty"`
	Result    []byte  `json:"result,omitempty"`
	Note      string  `json:"note,omitempty"`
	Becomes   string  `json:"becomes"`
	Why       string  `json:"why,omitempty"`
	Applied   bool    `json:"applied"`
}

// Run asks, shows, and settles.
func (c *unknownAsk) Run(ctx context.Context) error {
	by := ""
	if c.Apply {
		var err error
		if by, err = c.change().by(); err != nil {
			return err
		}
	}
	config, err := c.configuration(ctx, lastStep(string(c.Operation)))
	if err != nil {
		return err
	}
	asker, operations, err := operations(&config.Reconcile)
	if err != nil {
		return err
	}
	defer asker.Close()
	if c.URL == "" && c.Target == "" { // as once serve chooses
		c.URL = chosen(config.URL)
	}
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	recs, err := c.records(ctx, s, operations)
	if err != nil {
		return err
	}
	all := askAll(ctx, s, newProgress(c.outputFlags), operations, recs)
	if err := ctx.Err(); err != nil {
		return err
	}
	if !c.Apply {
		return printAsked(c.outputFlags, all)
	}
	return c.apply(ctx, s, by, all)
}

func lastStep(operation string) string { return operation[strings.LastIndexByte(operation, '/')+1:] }

// records are the keys to ask about.
func (c *unknownAsk) records(ctx context.Context, s *session, operations map[string]asking.Operation) ([]once.Record, error) {
	if c.Operation != "" {
		if _, ok := operations[lastStep(string(c.Operation))]; !ok {
			return nil, usage("%s has no [[reconcile.operation]] named %s with an ask", c.Config, lastStep(string(c.Operation)))
		}
	} else if len(operations) == 0 {
		return nil, usage("%s has no [[reconcile.operation]] with an ask", c.Config)
	}
	if c.ID == "" {
		return c.listed(ctx, s, operations)
	}
	k := once.Key{Operation: string(c.Operation), ID: string(c.ID)}
	if c.Scope != nil {
		k.Scope = *c.Scope
	}
	if err := k.Validate(); err != nil {
		return nil, usage("%v", err)
	}
	r, err := s.Store.Get(ctx, k)
	switch {
	case err != nil:
		return nil, err
	case r.Created.IsZero():
		return nil, moved("%s is not known, or forgotten", describe(k))
	case r.Status != once.Unknown:
		return nil, moved("%s is %v: only about unknown keys there is something to ask", describe(k), r.Status)
	}
	r.Key = k
	return []once.Record{r}, nil
}

func (c *unknownAsk) listed(ctx context.Context, s *session, operations map[string]asking.Operation) (all []once.Record, err error) {
	what := selection{RecordQuery: once.RecordQuery{Operation: string(c.Operation), Status: []once.Status{once.Unknown}, Limit: 1000}}
	if c.Scope != nil {
		what.Scopes = []string{*c.Scope}
	}
	for {
		recs, next, err := page(ctx, s.Target, what)
		if err != nil {
			return nil, err
		}
		for _, r := range recs {
			if _, ok := operations[lastStep(r.Key.Operation)]; !ok {
				continue
			}
			if len(all) == c.Limit {
				note("There are more: these are the first %d, see --limit.", c.Limit)
				return all, nil
			}
			all = append(all, r)
		}
		if what.After = next; next == (once.Key{}) {
			if len(all) == 0 {
				note("There is no unknown key to ask about.")
			}
			return all, nil
		}
	}
}

// atOnce is how many questions about an operation are on their way, unless its configuration says so: as once serve does it.
const atOnce = 4

// askAll asks about each operation by itself: none waits for the pace of another.
func askAll(ctx context.Context, s *session, line *progress, operations map[string]asking.Operation, recs []once.Record) []asked {
	all := make([]asked, len(recs))
	those := make(map[string][]int)
	for i, r := range recs {
		name := lastStep(r.Key.Operation)
		those[name] = append(those[name], i)
	}
	var begun atomic.Int64
	var running sync.WaitGroup
	defer line.end()
	for name, these := range those {
		running.Go(func() {
			op, next := operations[name], time.Now()
			places := make(chan struct{}, cmp.Or(op.AtOnce, atOnce))
			for _, i := range these {
				places <- struct{}{}
				if next = pace(ctx, next, op.PerSecond); ctx.Err() != nil {
					return
				}
				line.say("asking about %d of %s", begun.Add(1), show.Count(len(recs), "key", "keys"))
				running.Go(func() {
					defer func() { <-places }()
					all[i].Finding = op.Find(ctx, s.Store, recs[i])
				})
			}
		})
	}
	running.Wait()
	return all
}

const longestPause = 24 * time.Hour // between two questions: a Duration ends somewhere

// pace waits until the next question may be put, and returns when the one after it may.
func pace(ctx context.Context, next time.Time, perSecond float64) time.Time {
	if perSecond == 0 {
		return next
	}
	if now := time.Now(); next.Before(now) {
		next = now
	}
	_ = backoff.Sleep(ctx, time.Until(next))
	return next.Add(time.Duration(min(float64(time.Second)/perSecond, float64(longestPause))))
}

func printAsked(o outputFlags, all []asked) error {
	if o.json() {
		answers := []askedJSON{}
		for i := range all {
			a := &all[i]
			k := a.Record.Key
			answers = append(answers, askedJSON{k.Scope, k.Operation, k.ID, k.String(), a.Record.Attempt,
				seconds(max(-a.Record.LeaseLeft, 0)), string(a.Answer.Kind), a.Answer.Result, a.Answer.Note, a.becomes(), a.Why, a.applied})
		}
		return printJSON(struct {
			Answers []askedJSON `json:"answers"`
		}{answers})
	}
	table := newTable("ANSWER", "KEY BECOMES", "UNKNOWN", "SCOPE", "OPERATION", "ID", "WHY")
	for i := range all {
		a := &all[i]
		table.Row(cmp.Or(string(a.Answer.Kind), "none"), a.becomes(), show.Span(max(-a.Record.LeaseLeft, 0)), a.Record.Key.Scope,
			a.Record.Key.Operation, a.Record.Key.ID, show.Short(a.Why))
	}
	return table.Print(os.Stdout)
}

const maxNamed = 20 // keys that a yes is about, by their names

// named are the keys that are decided, a line for each.
func named(all []asked, decided int) (lines string) {
	n := 0
	for i := range all {
		a := &all[i]
		if a.Settlement.Status == once.Unknown {
			continue
		}
		if n++; n > maxNamed {
			return lines + fmt.Sprintf("\n  and %d more: without --apply, all are shown", decided-maxNamed)
		}
		lines += fmt.Sprintf("\n  %s becomes %s", describe(a.Record.Key), a.becomes())
	}
	return lines
}

// apply settles what is decided, each record as it was when it was asked about, or not at all.
func (c *unknownAsk) apply(ctx context.Context, s *session, by string, all []asked) error {
	counts := make(map[string]int)
	for i := range all {
		counts[all[i].becomes()]++
	}
	decided := len(all) - counts[once.Unknown.String()]
	if decided == 0 {
		return errors.Join(printAsked(c.outputFlags, all), errNo)
	}
	what := "  of " + show.Count(len(all), "unknown key", "unknown keys") + ", by the answers:"
	for _, becomes := range []string{"done", "rejected", "free", "parked", "unknown"} {
		if n := counts[becomes]; n > 0 {
			what += fmt.Sprintf("\n  %6d  %s", n, map[bool]string{true: "stay unknown", false: "become " + becomes}[becomes == "unknown"])
		}
	}
	if !utf8.ValidString(by + c.Reason) {
		return usage("--reason and --by have to be UTF-8")
	}
	if err := c.change().confirm(ctx, s, what+named(all, decided)); err != nil {
		return err
	}
	settled, overtaken := 0, 0
	for i := range all {
		a := &all[i]
		if a.Settlement.Status == once.Unknown {
			continue
		}
		a.Settlement.Reason = name.Reason(fmt.Sprintf("the answer was %s, applied by %s: %s", a.Answer.Kind, by,
			strings.TrimSpace(c.Reason)))
		err := s.Store.Settle(ctx, a.Settlement)
		switch {
		case errors.Is(err, once.ErrLeaseLost):
			overtaken++
			a.Settlement.Status, a.Why = once.Unknown, "left alone: it has moved on"
			continue
		case err != nil:
			return fmt.Errorf("after %d of %s: %w", settled, show.Count(decided, "key", "keys"), err)
		}
		a.applied = true
		settled++
		audit(s, "an answer was applied", by, c.Reason, "key", a.Record.Key, "attempt", a.Record.Attempt, "answer",
			string(a.Answer.Kind), "becomes", a.becomes())
	}
	if err := printAsked(c.outputFlags, all); err != nil {
		return err
	}
	if overtaken > 0 {
		return moved("%d of %s had moved on since the question: nothing was changed there", overtaken, show.Count(decided, "key", "keys"))
	}
	return nil
}
