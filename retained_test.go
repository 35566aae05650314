package once_test

import (
	"context"
	"runtime"
	"testing"
	"weak"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// Goroutines that outlive their work hold its context. That keeps neither the
// value nor what the work refers to.
func TestAContextThatIsKeptKeepsNoValue(t *testing.T) {
	type answer struct{ Text string }
	s := memstore.New(nil)
	op := &once.Operation[*answer]{Name: "op", OnUnknown: once.Park}
	for verb, do := range map[string]func(func(context.Context) (*answer, error)) (*answer, error){
		"Do": func(run func(context.Context) (*answer, error)) (*answer, error) {
			return once.Do(t.Context(), s, op.For("do"), func(ctx context.Context, _ once.Key) (*answer, error) { return run(ctx) })
		},
		"DoTx": func(run func(context.Context) (*answer, error)) (*answer, error) {
			return once.DoTx(t.Context(), s, op.For("tx"), func(ctx context.Context, _ *memstore.Tx) (*answer, error) { return run(ctx) })
		},
	} {
		t.Run(verb, func(t *testing.T) {
			var kept context.Context
			var value, used weak.Pointer[answer]
			func() {
				request := &answer{"request"}
				used = weak.Make(request)
				a, err := do(func(ctx context.Context) (*answer, error) {
					kept = ctx
					return &answer{request.Text}, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				value = weak.Make(a)
			}()
			runtime.GC()
			if value.Value() != nil || used.Value() != nil {
				t.Errorf("it keeps the value: %v, what the work refers to: %v", value.Value() != nil, used.Value() != nil)
			}
			if claim, ok := once.ClaimFrom(kept); !ok || claim.Attempt != 1 {
				t.Errorf("the claim of the context is %+v, %v", claim, ok)
			}
		})
	}
}
