// Package mask hides one error in the tree of another.
package mask

import "errors"

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
