// Package declared checks what operations are declared to be.
package declared

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

const minLease = 10 * time.Millisecond

// Policy is a once.Policy.
type Policy struct {
	Lease, Wait, KeepOutcome, KeepKey time.Duration
}

// WithDefaults fills in what is zero, and says what is wrong. Refuse is the one Wait that may be negative.
func (p Policy) WithDefaults(refuse time.Duration) (Policy, error) {
	p.Lease = cmp.Or(p.Lease, 30*time.Second)
	p.Wait = cmp.Or(p.Wait, 5*time.Second)
	p.KeepOutcome = cmp.Or(p.KeepOutcome, 3*24*time.Hour)
	p.KeepKey = cmp.Or(p.KeepKey, max(30*24*time.Hour, p.KeepOutcome))
	switch {
	case p.Lease < minLease:
		return p, fmt.Errorf("policy: a Lease of %v lapses before it can be extended: at least %v", p.Lease, minLease)
	case p.Wait < 0 && p.Wait != refuse:
		return p, fmt.Errorf("policy: Wait is %v: give a duration, or Refuse", p.Wait)
	case p.KeepOutcome < 0 || p.KeepKey < p.KeepOutcome:
		return p, fmt.Errorf("policy: KeepOutcome (%v) is negative, or KeepKey (%v) is shorter", p.KeepOutcome, p.KeepKey)
	}
	return p, nil
}

// Choice is a once.OnUnknown.
type Choice int

const (
	None Choice = iota
	Park
	Resend
)

// Operation is what there is to check of a once.Operation.
type Operation struct {
	Name                    string
	Asks, AsyncCommit       bool // it has a Lookup; it has AsyncCommit
	Choice                  Choice
	SettleTime, KeyValidFor time.Duration
}

// Check says what is wrong. Needed says that what is done about unknown outcomes must have been chosen.
func (o Operation) Check(needed bool) error {
	switch {
	case o.Name == "":
		return errors.New("operation: the Name is empty")
	case strings.Contains(o.Name, "/"):
		return fmt.Errorf("operation %q: a Name has no slash: declare steps with Under", o.Name)
	case o.Choice < None || o.Choice > Resend:
		return fmt.Errorf("operation %q: OnUnknown is neither Park nor Resend", o.Name)
	case o.Asks && o.Choice != None:
		return fmt.Errorf("operation %q: Lookup and OnUnknown exclude each other", o.Name)
	case o.SettleTime < 0 || o.KeyValidFor < 0:
		return fmt.Errorf("operation %q: SettleTime and KeyValidFor must not be negative", o.Name)
	case o.AsyncCommit && (o.Choice != Resend || o.KeyValidFor == 0):
		return fmt.Errorf("operation %q: AsyncCommit needs Resend and KeyValidFor: a claim that is forgotten is run again", o.Name)
	case needed && !o.Asks && o.Choice == None:
		return fmt.Errorf("operation %q: after a crash nobody can tell whether it happened: "+
			"give it a Lookup that asks, or choose OnUnknown: Park or Resend", o.Name)
	}
	return nil
}
