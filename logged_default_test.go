package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/memstore"
)

// Parked work is logged even without a Logger, and also after a slog.SetDefault
// that follows the making of the store.
func TestParkedWorkIsLoggedByDefault(t *testing.T) {
	s := memstore.New(nil)
	logged := logtest.Default(t)
	pay := &once.Operation[string]{Name: "pay", OnUnknown: once.Park}
	for _, id := range []string{"1", "2"} {
		if _, err := once.Do(t.Context(), s, pay.For(id), func(context.Context, once.Key) (string, error) { return "", errors.New("timeout") }); err == nil {
			t.Fatal("it is done")
		}
	}
	if got := logged.String(); strings.Count(got, "once: parked") != 2 {
		t.Errorf("logged: %s", got)
	}
}

// Repeated warnings about one operation are spaced and counted.
func TestOutcomesThatAreNotKeptAreCounted(t *testing.T) {
	s := memstore.New(&memstore.Options{Options: once.Options{MaxOutcome: 10}})
	logged := logtest.Default(t)
	for _, name := range []string{"large", "larger"} {
		op := &once.Operation[string]{Name: name, OnUnknown: once.Park}
		for _, id := range []string{"1", "2", "3"} {
			if _, err := once.Do(t.Context(), s, op.For(id), func(context.Context, once.Key) (string, error) { return strings.Repeat("x", 100), nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := logged.String(); strings.Count(got, "over MaxOutcome") != 2 {
		t.Errorf("logged: %s", got)
	}
}
