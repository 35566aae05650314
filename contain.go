package once

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// abruptEnd is the error of work that panicked or ended its goroutine.
type abruptEnd struct {
	panicked bool
	value    any // of the panic
	stack    []byte
}

func (e *abruptEnd) Error() string {
	if e.panicked {
		return fmt.Sprintf("once: the work panicked: %v", e.value)
	}
	return "once: the work ended its goroutine"
}

// contain calls work in its own goroutine, and returns an *abruptEnd if work does
// not return. The goroutine is needed because runtime.Goexit cannot be stopped in
// the goroutine that it ends.
func contain(work func() error) error {
	result := make(chan error, 1)
	go func() {
		returned := false
		defer func() {
			if !returned {
				value := recover()
				result <- &abruptEnd{panicked: value != nil, value: value, stack: debug.Stack()}
			}
		}()
		err := work()
		returned = true
		result <- err
	}()
	return <-result
}

// resume ends the calling goroutine in the same way.
func (e *abruptEnd) resume() {
	if e.panicked {
		panic(e.value)
	}
	runtime.Goexit()
}
