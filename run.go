package once

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once/internal/errtree"
)

// RunAll runs several blocking functions at once, such as the Run methods of consumers, relays, janitors and
// reconcilers, and returns when all of them have returned.
//
// When one of them returns an error, the context of the others ends. RunAll returns the errors joined, the first one
// first. Errors that only say that the context has ended are left out, so it returns nil when ctx ends and all of them
// stop in order. One that returns nil while ctx lasts has done its work, and the others go on.
//
// It starts a goroutine for each of them and has no time limit of its own: what has begun is waited for.
func RunAll(ctx context.Context, runs ...func(context.Context) error) error {
	for i, run := range runs {
		if run == nil {
			return fmt.Errorf("%w: RunAll: function %d of %d is nil", ErrInvalid, i+1, len(runs))
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(runs))
	for _, run := range runs {
		go func() {
			failed := errors.New("once: a function of RunAll ended its goroutine")
			defer func() { ended <- failed }()
			failed = run(ctx)
		}()
	}
	var errs []error
	for range runs {
		err := errtree.Tame(<-ended)
		if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			continue
		}
		errs = append(errs, err)
		cancel()
	}
	return errors.Join(errs...)
}
