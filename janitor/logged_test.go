//go:build go1.25

package janitor_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/janitor"
)

// TestTroubleIsLoggedByDefault: without a Logger, a store that cannot be
// reached is heard of.
func TestTroubleIsLoggedByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := logtest.Default(t)
		s := newLarge(10, 0, 0)
		s.fail("keys", errBoom)
		stop := run(t, &janitor.Janitor{Store: s})
		counted := newListed(10)
		counted.before = func(once.RecordQuery) error { return errBoom }
		stopQuota := run(t, &janitor.Quota{Store: counted, Limit: janitor.Limit{Keys: 1}, Every: time.Second})
		time.Sleep(time.Hour)
		stop()
		stopQuota()
		for _, message := range []string{"janitor: the store failed, and some records are not deleted", "janitor: the store failed, and its keys cannot be counted"} {
			if n := strings.Count(logged.String(), message); n < 1 || n > 61 {
				t.Errorf("%d lines of %q after an hour", n, message)
			}
		}
	})
}
