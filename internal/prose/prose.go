// Package prose puts errors into words.
package prose

import (
	"errors"
	"fmt"
	"time"
)

// Named is a name in three parts: a once.Key.
type Named interface {
	~struct{ Scope, Operation, ID string }
}

// Failure is an error with its circumstances: a sentinel, what it is about, and its cause. Only Kind is mandatory.
type Failure[K Named] struct {
	Kind    error
	Key     K // zero: not about one
	Attempt int64
	After   time.Duration
	Hint    string // what to do
	Cause   error
}

func (f *Failure[K]) Error() string {
	text := f.Kind.Error()
	about := struct{ Scope, Operation, ID string }(f.Key)
	if about.ID != "" || about.Operation != "" {
		text += fmt.Sprintf(": %s %q", about.Operation, about.ID)
	}
	if about.Scope != "" {
		text += fmt.Sprintf(" of %q", about.Scope)
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

// What is the kind of failure.
func (f *Failure[K]) What() error { return f.Kind }

// Unwrap returns the kind, and then the cause, if there is one.
func (f *Failure[K]) Unwrap() []error {
	if f.Cause == nil {
		return []error{f.Kind}
	}
	return []error{f.Kind, f.Cause}
}

// After is when to try again, as the outermost failure in err says that says it; 0: none does.
func After[K Named](err error) time.Duration {
	var f *Failure[K]
	for errors.As(err, &f) && f.After <= 0 && f.Cause != nil {
		err, f = f.Cause, nil
	}
	if f == nil {
		return 0
	}
	return max(f.After, 0)
}
