package once_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// observerFunc is a once.Observer.
type observerFunc func(ctx context.Context, verb string, k once.Key) (context.Context, func(once.CallResult))

func (f observerFunc) Begin(ctx context.Context, verb string, k once.Key) (context.Context, func(once.CallResult)) {
	return f(ctx, verb, k)
}

func observed(f observerFunc) (*memstore.Store, *bytes.Buffer) {
	var log bytes.Buffer
	return memstore.New(&memstore.Options{Options: once.Options{Observer: f, Logger: slog.New(slog.NewTextHandler(&log, nil))}}), &log
}

type marker struct{}

func TestObserverSeesEveryVerbAndGivesTheContextOfTheWork(t *testing.T) {
	var seen []string
	s, _ := observed(func(ctx context.Context, verb string, k once.Key) (context.Context, func(once.CallResult)) {
		return context.WithValue(ctx, marker{}, verb), func(e once.CallResult) {
			seen = append(seen, verb+" "+k.ID+" "+e.Result)
			if !e.Ran || e.Attempt != 1 || e.Replayed || e.Err != nil {
				t.Errorf("%s has ended as %+v", verb, e)
			}
		}
	})
	check := func(ctx context.Context, verb string) (string, error) {
		if got, _ := ctx.Value(marker{}).(string); got != verb {
			t.Errorf("the work of %s has the context of %q", verb, got)
		}
		if claim, ok := once.ClaimFrom(ctx); !ok || claim.Attempt != 1 {
			t.Errorf("%s: the work does not know its claim", verb)
		}
		return verb, nil
	}
	_, err1 := once.Do(testCtx, s, parked.For("1"), func(ctx context.Context, _ once.Key) (string, error) { return check(ctx, "Do") })
	_, err2 := once.DoTx(testCtx, s, inTx.For("2"), func(ctx context.Context, tx *memstore.Tx) (string, error) { return check(ctx, "DoTx") })
	_, err3 := once.InTx(testCtx, s, s.Begin(), inTx.For("3"), func(ctx context.Context) (string, error) { return check(ctx, "InTx") })
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Error(err)
	}
	if want := []string{"Do 1 done", "DoTx 2 done", "InTx 3 done"}; !slices.Equal(seen, want) {
		t.Errorf("seen were %q, want %q", seen, want)
	}
}

func TestObserverThatPanicsChangesNothing(t *testing.T) {
	ends := 0
	for name, f := range map[string]observerFunc{
		"begin": func(context.Context, string, once.Key) (context.Context, func(once.CallResult)) { panic("observer") },
		"end": func(ctx context.Context, _ string, _ once.Key) (context.Context, func(once.CallResult)) {
			return ctx, func(once.CallResult) { ends++; panic("observer") }
		},
		"nothing": func(context.Context, string, once.Key) (context.Context, func(once.CallResult)) { return nil, nil },
	} {
		s, log := observed(f)
		var c counter
		for range 2 {
			if got, err := once.Do(testCtx, s, parked.For("1"), c.run("answer", nil)); got != "answer" || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		c.ran(t, 1)
		if told := strings.Contains(log.String(), "once: the observer panicked"); told != (name != "nothing") {
			t.Errorf("%s: the log says %q", name, log)
		}
	}
	if ends != 2 {
		t.Errorf("the end was seen %d times, want 2", ends)
	}
}

// An observer that panics must not hide the panic of the work.
func TestObserverDoesNotSwallowThePanicOfTheWork(t *testing.T) {
	var result string
	s, _ := observed(func(ctx context.Context, _ string, _ once.Key) (context.Context, func(once.CallResult)) {
		return ctx, func(e once.CallResult) { result = e.Result; panic("observer") }
	})
	defer func() {
		if p := recover(); p != "work" || result != "panicked" {
			t.Errorf("recovered %v, and the observer heard %q", p, result)
		}
		wantStatus(t, s, parked.For("1").Key(), once.Parked)
	}()
	_, _ = once.Do(testCtx, s, parked.For("1"), func(context.Context, once.Key) (string, error) { panic("work") })
}
