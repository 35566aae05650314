//go:build linux

package consume

import (
	"errors"
	"testing"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
)

// Functions that all proofs share.
var (
	must       = proof.Must
	await      = proof.Await
	pause      = proof.Pause
	soon       = proof.Soon
	settled    = proof.Settled
	testLogger = proof.Logger
)

const patience = proof.Patience

func wantLogChanged(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, inbox.ErrLogChanged) {
		t.Errorf("Run returned %v, not ErrLogChanged", err)
	}
}
