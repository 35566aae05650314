//go:build !linux

package tablestore

import (
	"testing"

	"github.com/effectively-once/once/internal/logtest"
)

func TestMain(m *testing.M) { logtest.Main(m) }
