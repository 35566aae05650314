// Package errtree searches the trees of errors, and hides errors in them.
package errtree

import (
	"errors"
	"slices"
)

// ErrNotDone marks the errors of once.NotDone.
var ErrNotDone = errors.New("once: nothing happened")

// Hide returns an error like err, in which [errors.Is] does not find mark.
func Hide(err, mark error) error {
	if !errors.Is(err, mark) {
		return err
	}
	return masked{err, mark}
}

type masked struct {
	error
	mark error
}

func (m masked) Is(target error) bool { return target != m.mark && errors.Is(m.error, target) }
func (m masked) As(target any) bool   { return errors.As(m.error, target) }

// HasAny reports whether any of the targets is in the tree of err.
func HasAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
