//go:build go1.25

package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/memstore"
)

// TestTroubleIsLoggedByDefault: without a Logger, a record about which nobody
// answers is heard of, once in a minute at most.
func TestTroubleIsLoggedByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged, s := logtest.Default(t), memstore.New(nil)
		charge := &once.Operation[string]{Name: "charge", Lookup: func(context.Context, once.Key) (string, bool, error) {
			return "", false, errors.New("nobody answers")
		}}
		crash(t, s, charge, "1")
		stop := run(t, &reconcile.Reconciler{Store: s, Every: time.Second, Operations: []reconcile.Operation{reconcile.Of(charge)}})
		time.Sleep(time.Hour)
		stop()
		if n := strings.Count(logged.String(), "reconcile: no answer"); n < 1 || n > 61 {
			t.Errorf("%d lines after an hour: %.300s", n, logged)
		}
	})
}
