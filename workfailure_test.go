package once_test

import (
	"context"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

type fields []string // as validator.ValidationErrors is

func (f fields) Error() string { return f[0] }

type caused struct{ cause error }

func (c caused) Error() string { return "because: " + c.cause.Error() }

func TestErrorsThatCannotBeCompared(t *testing.T) {
	for name, failed := range map[string]error{"slice": fields{"name is missing"}, "nested": caused{fields{"name is missing"}}} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("DoTx panics: %v", p)
				}
			}()
			s := memstore.New(nil)
			op := &once.Operation[string]{Name: "x"}
			calls := 0
			v, err := once.DoTx(t.Context(), s, op.For("1"), func(context.Context, *memstore.Tx) (string, error) {
				calls++
				return "value", failed
			})
			if calls != 1 || v != "value" || err == nil {
				t.Errorf("called %d times, value %q, err %v", calls, v, err)
			}
		})
	}
}
