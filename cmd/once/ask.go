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
)

// endpointFlags select the endpoint to ask.
type endpointFlags struct {
	Config string `short:"c" type:"path" placeholder:"FILE" help:"Configuration file of once serve, with the URLs in [[reconcile.operation]]."`

	At          string         `placeholder:"URL" help:"URL to ask; requires --settle. $${NAME} is replaced by that environment variable."`
	SecretFrom  chosen         `placeholder:"NAME" help:"Environment variable with the secret for --at (default ONCE_ASK_SECRET)."`
	Settle      *span          `placeholder:"TIME" help:"How long after its end an attempt can still arrive there. Until then, not_found is inconclusive."`
	KeyValidFor span           `placeholder:"TIME" help:"How long the other system honours a key. After that, not_found parks the key."`
	Allow       []netip.Prefix `placeholder:"CIDR" help:"Non-public network to which connections are allowed; repeatable."`
	AllowHTTP   bool           `name:"allow-http" help:"Allow http in --at, although anyone on the network path can then answer."`
}

const defaultSecret = "ONCE_ASK_SECRET"

func (f *endpointFlags) validate() error {
	switch {
	case (f.Config == "") == (f.At == ""):
		return errors.New("name what to ask: --config or --at")
	case f.Config != "" && (f.SecretFrom != "" || f.Settle != nil || f.KeyValidFor != 0 || len(f.Allow) > 0 || f.AllowHTTP):
		return errors.New("--secret-from, --settle, --key-valid-for, --allow and --allow-http are for --at: with --config, the file has these settings")
	case f.At != "" && f.Settle == nil:
		return errors.New("--at needs --settle: how long an attempt can still arrive there after it has ended")
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

// operations returns the operations that can be asked about, by name.
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

	Operation chosen  `arg:"" optional:"" complete:"operation" help:"Operation or step to ask about. With --config the default is all."`
	ID        chosen  `arg:"" optional:"" name:"id" help:"ID of a single key to ask about."`
	Scope     *string `placeholder:"TEXT" help:"Only this scope. With an ID the default is the empty scope."`
	Limit     int     `default:"100" placeholder:"N" help:"Maximum number of keys, up to 1000 (default 100)."`

	Apply  bool   `help:"Settle the keys that the answers decide. Requires --reason."`
	Reason string `placeholder:"TEXT" help:"Why the answers can be trusted. It is stored with each change."`
	By     string `placeholder:"NAME" help:"Name for the audit line. Default: $$ONCE_BY, then your user name."`
	Yes    bool   `short:"y" help:"Skip confirmation."`
}

func (c *unknownAsk) change() *changeFlags { return &changeFlags{c.Reason, c.By, c.Yes} }

// Validate is called by kong.
func (c *unknownAsk) Validate() error {
	switch {
	case c.Limit < 1 || c.Limit > 1000:
		return fmt.Errorf("--limit is %d: use 1 to 1000", c.Limit)
	case c.At != "" && c.Operation == "":
		return errors.New("name the operation to ask about at that URL")
	case !c.Apply && (c.Reason != "" || c.By != "" || c.Yes):
		return errors.New("--reason, --by and --yes require --apply: without it, nothing is changed")
	}
	if err := c.validate(); err != nil || !c.Apply {
		return err
	}
	return c.change().Validate()
}

// Help is the long text of once unknown ask --help.
func (unknownAsk) Help() string {
	return `
Asks the URL of an operation for the outcomes of unknown keys, as once serve does, and prints the answers.
docs/asking.md describes the protocol. The database is --url or --target, then the url in the --config file, then the
current target. Without --apply nothing is changed. With --apply:

  done, rejected   completes the key with the result of the answer
  not_found        frees the key if the settle time has passed; parks it if the other system no longer honours the key
  other answers    leave the key unknown

Examples:
  once unknown ask --config once.toml
  once unknown ask --config once.toml pay/charge order-4711
  once unknown ask pay/charge --at https://shop.example/once --settle 10m --secret-from SHOP_SECRET
  once unknown ask --config once.toml --apply --reason "the provider is back, ticket 88"

` + exitHelp
}

// asked is a key and the answer about it.
type asked struct {
	asking.Finding
	applied bool
}

// becomes returns the status that the key gets, or already has.
func (a *asked) becomes() string {
	if s := a.Settlement; s.Status == once.Absent {
		return "free"
	} else if s.Status == once.Done && s.Outcome.Rejected {
		return "rejected"
	}
	return a.Settlement.Status.String()
}

// askedJSON is the JSON form of asked.
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

// Run asks, prints the answers, and settles the keys.
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

// records returns the records to ask about.
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
		return nil, moved("%s is unknown to the store or was forgotten", describe(k))
	case r.Status != once.Unknown:
		return nil, moved("%s is %v: only unknown keys can be asked about", describe(k), r.Status)
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
				note("There are more keys. These are the first %d; see --limit.", c.Limit)
				return all, nil
			}
			all = append(all, r)
		}
		if what.After = next; next == (once.Key{}) {
			if len(all) == 0 {
				note("There are no unknown keys to ask about.")
			}
			return all, nil
		}
	}
}

// atOnce is the default limit of concurrent questions per operation. once serve
// has the same default.
const atOnce = 4

// askAll asks about each operation separately, so that a slow rate of one does
// not delay another.
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

// pace waits until the next question is due and returns when the one after it
// is due.
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

// named formats the keys to decide, one per line.
func named(all []asked, decided int) (lines string) {
	n := 0
	for i := range all {
		a := &all[i]
		if a.Settlement.Status == once.Unknown {
			continue
		}
		if n++; n > maxNamed {
			return lines + fmt.Sprintf("\n  and %d more; run without --apply to see all", decided-maxNamed)
		}
		lines += fmt.Sprintf("\n  %s becomes %s", describe(a.Record.Key), a.becomes())
	}
	return lines
}

// apply settles the decided records. It skips a record that has changed since it
// was asked about.
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
		return usage("--reason and --by must be UTF-8")
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
		err := a.Settle(ctx, s.Store, fmt.Sprintf("the answer was %s, applied by %s: %s", a.Answer.Kind, by, strings.TrimSpace(c.Reason)))
		switch {
		case errors.Is(err, once.ErrLeaseLost):
			overtaken++
			a.Settlement.Status, a.Why = once.Unknown, "not changed: the record has changed meanwhile"
			continue
		case errors.Is(err, once.ErrOutcomeUnknown):
			overtaken++
			a.Settlement.Status, a.Why = once.Unknown, "not changed: "+err.Error()
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
		return moved("%d of %s changed after the question was asked and were left as they are", overtaken, show.Count(decided, "key", "keys"))
	}
	return nil
}
