// Package errtreetest has errors as users may return them, whose methods panic.
package errtreetest

import "io"

type (
	withText struct{ text string }
	badText  struct{}
	badIs    struct{ error }
	badAs    struct{ error }
	badBelow struct{ error }
)

func (w withText) Error() string { return w.text }
func (badText) Error() string    { panic("Error") }
func (badIs) Is(error) bool      { panic("Is") }
func (badAs) As(any) bool        { panic("As") }
func (badBelow) Unwrap() error   { panic("Unwrap") }

// Unruly has an error for each method that may panic, by its name.
var Unruly = map[string]error{"nil pointer": (*withText)(nil), "Error": badText{}, "Is": badIs{io.EOF}, "As": badAs{io.EOF},
	"Unwrap": badBelow{io.EOF}}
