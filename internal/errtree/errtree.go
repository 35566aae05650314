// Package errtree finds errors in the tree of another one, and hides them there.
package errtree

import (
	"errors"
	"slices"
)

// ErrNotDone is the mark of once.NotDone.
var ErrNotDone = errors.New("once: nothing happened")

// Hide returns err, in which errors.Is no longer finds mark.
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

// Tagged is an error that is known again by its address, whatever it is in by then. Its cause need not be comparable.
type Tagged struct{ error }

// Tag returns nil for nil.
func Tag(err error) *Tagged {
	if err == nil {
		return nil
	}
	return &Tagged{err}
}

func (t *Tagged) Unwrap() error { return t.error }

// HasAny reports whether any of the targets is in the tree of err.
func HasAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
