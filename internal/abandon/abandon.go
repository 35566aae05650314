// Package abandon is for requests of clients that go on after their context has
// ended.
package abandon

import "context"

// Ask makes a request, and does not wait for it after ctx ends. The request goes on
// then, and ends when its client gives up or is closed.
func Ask[T any](ctx context.Context, request func() (T, error)) (T, error) {
	type reply struct {
		value T
		err   error
	}
	replied := make(chan reply, 1)
	go func() {
		value, err := request()
		replied <- reply{value, err}
	}()
	select {
	case r := <-replied:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
