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

// contain calls work in a goroutine of its own and returns an *abruptEnd if it does not return. The goroutine is needed
// for runtime.Goexit, which cannot be stopped in the goroutine that it ends.
func contain(work func() error) (err error) {
	end := &abruptEnd{}
	err = end
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if err != error(end) {
				return
			}
			end.value = recover()
			end.panicked, end.stack = end.value != nil, debug.Stack()
		}()
		err = work()
	}()
	<-ended
	return err
}

// resume ends the calling goroutine in the same way.
func (e *abruptEnd) resume() {
	if e.panicked {
		panic(e.value)
	}
	runtime.Goexit()
}
