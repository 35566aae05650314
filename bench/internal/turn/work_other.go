//go:build !linux

package turn

import (
	"errors"
	"time"
)

// Work is the processor time that this process and the private PostgreSQL have needed so far. Only Linux tells.
func Work() (time.Duration, error) { return 0, errors.ErrUnsupported }
