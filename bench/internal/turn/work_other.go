//go:build !linux

package turn

import (
	"errors"
	"time"
)

// Work returns the processor time that this process and the private PostgreSQL
// have used. Only Linux provides it.
func Work() (time.Duration, error) { return 0, errors.ErrUnsupported }

// OwnWork returns the processor time that this process has used. Only Linux
// provides it.
func OwnWork() (time.Duration, error) { return 0, errors.ErrUnsupported }
