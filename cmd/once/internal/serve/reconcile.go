package serve

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/asking"
	"github.com/effectively-once/once/reconcile"
)

// Reconcile configures how abandoned work is resolved.
type Reconcile struct {
	Park       []string // operations whose unknown records are parked
	Every      Duration
	Operations []Operation `toml:"operation"`

	Allow     []netip.Prefix // for the URLs to ask
	AllowHTTP bool           `toml:"allow_http"`
	Timeout   Duration
}

// Operation is an operation with either a URL to ask or a policy.
type Operation struct {
	Name      string
	PerSecond float64 `toml:"per_second"`
	AtOnce    int     `toml:"at_once"`

	Policy      string   // park or resend
	KeyValidFor Duration `toml:"key_valid_for"`

	Ask         string
	Secrets     []string
	Settle      *Duration // required with Ask
	KeepOutcome Duration  `toml:"keep_outcome"`
	KeepKey     Duration  `toml:"keep_key"`
}

var choices = map[string]once.OnUnknown{"park": once.Park, "resend": once.Resend}

// Asker asks about the operations that have a URL.
func (r *Reconcile) Asker() (*asking.Asker, error) {
	if r.Timeout < 0 {
		return nil, refuse("reconcile.timeout must not be negative")
	}
	return asking.New(asking.Options{Allow: r.Allow, AllowHTTP: r.AllowHTTP, Timeout: time.Duration(r.Timeout)}), nil
}

// Asked returns the operations that have a URL.
func (r *Reconcile) Asked(by *asking.Asker) (all []asking.Operation, err error) {
	for i := range r.Operations {
		o := &r.Operations[i]
		if o.Ask == "" {
			continue
		}
		asked, err := o.asked(by)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other asking.Operation) bool { return other.Name == o.Name }) {
			return nil, refuse("%s is given twice", o.setting("ask"))
		}
		all = append(all, asked)
	}
	if len(all) == 0 && (len(r.Allow) > 0 || r.AllowHTTP || r.Timeout != 0) {
		return nil, refuse("reconcile.allow, allow_http and timeout apply to ask, but no [[reconcile.operation]] has an ask")
	}
	return all, nil
}

// Questions returns the operations that have a URL, for people who want to ask
// about the keys of a store.
func (r *Reconcile) Questions(by *asking.Asker, s once.Store) (all []reconcile.Operation, err error) {
	asked, err := r.Asked(by)
	for _, o := range asked {
		of := reconcile.Of(o.Declared(s))
		of.PerSecond, of.AtOnce = o.PerSecond, o.AtOnce
		all = append(all, of)
	}
	return all, err
}

func (o *Operation) setting(name string) string { return "reconcile.operation " + o.Name + ": " + name }

func (o *Operation) asked(by *asking.Asker) (asked asking.Operation, err error) {
	switch {
	case o.Policy != "":
		return asked, refuse("%s and policy cannot be used together", o.setting("ask"))
	case o.Settle == nil:
		return asked, refuse("%s is missing: give the time after an attempt ends during which it can still take effect; until then, "+
			"not_found does not free the key; \"0s\" if it cannot", o.setting("settle"))
	case o.AtOnce < 0 || !(o.PerSecond >= 0): // also rejects NaN
		return asked, refuse("%s and per_second must not be negative", o.setting("at_once"))
	}
	url, err := expand(o.setting("ask"), o.Ask)
	if err != nil {
		return asked, err
	}
	var secrets []string
	for _, secret := range o.Secrets {
		expanded, err := expand(o.setting("secrets"), secret)
		if err != nil {
			return asked, err
		}
		secrets = append(secrets, expanded)
	}
	endpoint, err := by.Endpoint(url, secrets)
	if err != nil {
		return asked, refuse("%s: %s", o.setting("ask"), inFile("reconcile", err))
	}
	asked = asking.Operation{Name: o.Name, Endpoint: endpoint, AtOnce: o.AtOnce, PerSecond: o.PerSecond,
		SettleTime: time.Duration(*o.Settle), KeyValidFor: time.Duration(o.KeyValidFor),
		KeepOutcome: time.Duration(o.KeepOutcome), KeepKey: time.Duration(o.KeepKey)}
	if _, err := asked.Declared(nil).Ask(context.Background(), nil, once.Record{}); err != nil { // validates the declaration with an empty record
		return asked, refuse("%s: %s", o.setting("ask"), inFile("reconcile", err))
	}
	return asked, nil
}

// chosen is an operation with a policy and no URL.
func (o *Operation) chosen() (*once.Operation[any], error) {
	choice, ok := choices[o.Policy]
	switch {
	case !ok && o.Policy == "":
		return nil, refuse("%s is missing: give a URL or a policy", o.setting("ask"))
	case !ok:
		return nil, refuse("%s is %q: use park or resend", o.setting("policy"), o.Policy)
	case choice == once.Park && o.KeyValidFor != 0:
		return nil, refuse("%s applies to ask and resend: parked work does not run again", o.setting("key_valid_for"))
	case o.Settle != nil || len(o.Secrets) > 0 || o.KeepOutcome != 0 || o.KeepKey != 0:
		return nil, refuse("%s is missing: settle, secrets, keep_outcome and keep_key need it", o.setting("ask"))
	}
	return &once.Operation[any]{Name: o.Name, OnUnknown: choice, KeyValidFor: time.Duration(o.KeyValidFor)}, nil
}

// reconciler returns a Reconciler for the operations, or nil if there are none.
// asker may be nil.
func (r *Reconcile) reconciler(s once.Store) (*reconcile.Reconciler, *asking.Asker, error) {
	by, err := r.Asker()
	if err != nil {
		return nil, nil, err
	}
	asked, err := r.Asked(by)
	if err != nil {
		return nil, nil, err
	}
	made := &reconcile.Reconciler{Store: s, Every: time.Duration(r.Every),
		AskTime: time.Duration(max(r.Timeout, Duration(asking.DefaultTimeout))) + storeTime}
	for _, name := range r.Park {
		made.Operations = append(made.Operations, reconcile.Of(&once.Operation[any]{Name: name, OnUnknown: once.Park}))
	}
	for i := range r.Operations {
		o := &r.Operations[i]
		var of reconcile.Operation
		if o.Ask != "" {
			of, asked = reconcile.Of(asked[0].Declared(s)), asked[1:]
		} else {
			op, err := o.chosen()
			if err != nil {
				return nil, nil, err
			}
			of = reconcile.Of(op)
		}
		of.PerSecond, of.AtOnce = o.PerSecond, o.AtOnce
		made.Operations = append(made.Operations, of)
	}
	switch {
	case len(made.Operations) == 0 && r.Every != 0:
		return nil, nil, refuse("reconcile.every is set, but there is nothing to reconcile: add reconcile.park or a [[reconcile.operation]]")
	case len(made.Operations) == 0:
		return nil, by, nil
	}
	return made, by, nil
}

// storeTime is the time reserved for the store, in addition to the question.
const storeTime = 25 * time.Second
