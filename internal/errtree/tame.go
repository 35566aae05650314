package errtree

import (
	"fmt"
	"reflect"
	"runtime"
)

// Tame is called once for each error that code of users returns. It returns err
// if its methods return when they are called: the usual case. Otherwise, such
// as for a nil pointer whose method reads a field, it returns an error that has
// the text of err and matches what err matches, as far as that can be found out
// without a panic.
//
// Without it, such an error would panic wherever it is first looked at: after
// the work was done and before that is recorded.
func Tame(err error) error {
	if err == nil || isTame(err) {
		return err
	}
	return &tamed{of: err, text: textOf(err)}
}

// An error may wrap itself, so not more than this is looked at.
const (
	deepest  = 1000
	mostSeen = 10_000
)

// isTame calls the methods of all errors in a tree.
func isTame(err error) (tame bool) {
	defer func() {
		if recover() != nil {
			tame = false
		}
	}()
	left := mostSeen
	var isSound func(err error, depth int) bool
	isSound = func(err error, depth int) bool {
		if left--; left < 0 || depth > deepest {
			return false
		}
		_ = err.Error()
		if is, ok := err.(interface{ Is(error) bool }); ok {
			is.Is(probe{})
		}
		if as, ok := err.(interface{ As(any) bool }); ok {
			as.As(new(probe))
		}
		for _, below := range unwrap(err) {
			if below != nil && !isSound(below, depth+1) {
				return false
			}
		}
		return true
	}
	return isSound(err, 1)
}

// probe is what no error is.
type probe struct{}

func (probe) Error() string { return "" }

func unwrap(err error) []error {
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		if below := err.Unwrap(); below != nil {
			return []error{below}
		}
	case interface{ Unwrap() []error }:
		return err.Unwrap()
	}
	return nil
}

// Panic returns what may be told to anybody of the value of a panic: the text of
// the runtime, but of another value only the type. It may have an address with a
// password in it.
func Panic(value any) string {
	if err, ok := value.(runtime.Error); ok {
		return err.Error()
	}
	return fmt.Sprintf("a value of the type %T", value)
}

func textOf(err error) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("an error of the type %T, whose methods panic: %s", err, Panic(p))
		}
	}()
	return err.Error()
}

// tamed is an error that must not be touched without a guard.
type tamed struct {
	of   error
	text string
}

func (t *tamed) Error() string { return t.text }

// Is is [errors.Is], but for an error that panics, it goes on with the next.
func (t *tamed) Is(target error) bool {
	comparable := target != nil && reflect.TypeOf(target).Comparable()
	return t.any(func(err error) bool {
		if comparable && err == target {
			return true
		}
		is, ok := err.(interface{ Is(error) bool })
		return ok && is.Is(target)
	})
}

// As is [errors.As] in the same way.
func (t *tamed) As(target any) bool {
	into := reflect.ValueOf(target).Elem()
	return t.any(func(err error) bool {
		if reflect.TypeOf(err).AssignableTo(into.Type()) {
			into.Set(reflect.ValueOf(err))
			return true
		}
		as, ok := err.(interface{ As(any) bool })
		return ok && as.As(target)
	})
}

// any reports whether matches is true for an error of the tree.
func (t *tamed) any(matches func(error) bool) bool {
	left := mostSeen
	var within func(err error, depth int) bool
	within = func(err error, depth int) bool {
		if left--; err == nil || left < 0 || depth > deepest {
			return false
		}
		found := false
		guard(func() { found = matches(err) })
		if found {
			return true
		}
		var all []error
		guard(func() { all = unwrap(err) })
		for _, below := range all {
			if within(below, depth+1) {
				return true
			}
		}
		return false
	}
	return within(t.of, 1)
}

func guard(call func()) {
	defer func() { _ = recover() }()
	call()
}
