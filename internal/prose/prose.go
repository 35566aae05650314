// Package prose puts errors into words.
package prose

import (
	"fmt"
	"time"
)

// Failure is an error with its circumstances. Only Kind is mandatory.
type Failure struct {
	Kind                 error
	Scope, Operation, ID string
	Attempt              int64
	After                time.Duration
	Hint                 string
	Cause                error
}

func (f Failure) String() string {
	text := f.Kind.Error()
	if f.ID != "" || f.Operation != "" {
		text += fmt.Sprintf(": %s %q", f.Operation, f.ID)
	}
	if f.Scope != "" {
		text += fmt.Sprintf(" of %q", f.Scope)
	}
	if f.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d", f.Attempt)
	}
	if f.After > 0 {
		text += fmt.Sprintf(", retry after %v", f.After.Round(time.Millisecond))
	}
	if f.Hint != "" {
		text += "; " + f.Hint
	}
	if f.Cause != nil {
		text += ": " + f.Cause.Error()
	}
	return text
}
