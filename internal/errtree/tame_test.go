package errtree

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// Errors whose methods panic, or never end.
type (
	withField struct{ text string } // and a nil pointer to it
	noIs      struct{ error }
	noAs      struct{ error }
	noUnwrap  struct{ error }
	itself    struct{ string }
)

func (w withField) Error() string { return w.text }
func (noIs) Is(err error) bool    { return err.(*itself) == nil }
func (noAs) As(any) bool          { panic("As") }
func (noUnwrap) Unwrap() error    { panic("Unwrap") }
func (i *itself) Error() string   { return i.string }
func (i *itself) Unwrap() error   { return i }

func TestATamedErrorIsWhatItWas(t *testing.T) {
	for name, err := range map[string]error{
		"nil pointer": (*withField)(nil), "Is": noIs{io.ErrNoProgress}, "As": noAs{io.ErrNoProgress},
		"Unwrap": noUnwrap{io.ErrNoProgress}, "itself": &itself{"itself"}, "nil inside": struct{ error }{nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{errors.Join(err, io.EOF), errors.Join(io.EOF, err), fmt.Errorf("%w, %w", err, io.EOF)} {
				tame := Tame(err)
				if !errors.Is(tame, io.EOF) || errors.Is(tame, io.ErrShortWrite) || tame.Error() == "" {
					t.Errorf("%q does not match what it matched", tame)
				}
				var it *withField
				if errors.As(tame, &it) != (name == "nil pointer") {
					t.Errorf("As finds %v", it)
				}
			}
			if tame := Tame(err); Tame(tame) != tame {
				t.Error("a tamed error is tamed again")
			}
		})
	}
	if text := Tame((*withField)(nil)).Error(); !strings.Contains(text, "*errtree.withField") {
		t.Errorf("the text is %q, without the type", text)
	}
	for _, err := range []error{nil, io.EOF, errors.Join(io.EOF, nil), &masked{io.EOF, io.ErrNoProgress}, fmt.Errorf("a: %w", io.EOF)} {
		if Tame(err) != err {
			t.Errorf("%v is wrapped", err)
		}
	}
}
