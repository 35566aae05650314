package contain

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

func poison(*int) error { panic(io.EOF) }

// A function that does not return ends only its call, and the log has its stack.
func TestWhateverAFunctionDoesTheCallReturns(t *testing.T) {
	for name, c := range map[string]struct {
		f    func() error
		want string // of the error
	}{
		"returns":     {func() error { return nil }, ""},
		"fails":       {func() error { return io.EOF }, "EOF"},
		"panics":      {func() error { return poison(nil) }, "once: the Publisher panicked, see the log"},
		"fails in Go": {func() error { var none []int; return fmt.Errorf("%d", none[len(none)]) }, "panicked, see the log: runtime error: index out of range"},
		"exits":       {func() error { runtime.Goexit(); return nil }, "once: the Publisher ended its goroutine, see the log"},
		"unruly":      {func() error { return (*unruly)(nil) }, "an error of the type *contain.unruly"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			err := Logged(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "the Publisher", c.f)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			var ended *Error
			if errors.As(err, &ended) != (log.Len() > 0) {
				t.Errorf("the log of %v is %q", err, log.String())
			}
			if name == "panics" && (errors.Is(err, io.EOF) || !strings.Contains(log.String(), "contain.poison") || !strings.Contains(log.String(), "panic=EOF")) {
				t.Errorf("%v matches what it panicked with, or the log lacks that or the stack:\n%s", err, log.String())
			}
		})
	}
}

// What is resumed ends its goroutine as the function did.
func TestResume(t *testing.T) {
	ended := make(chan any)
	for _, f := range []func() error{func() error { return poison(nil) }, func() error { runtime.Goexit(); return nil }} {
		go func() {
			defer func() { ended <- recover() }()
			Call("the work", f).(*Error).Resume()
		}()
	}
	if a, b := <-ended, <-ended; (a == io.EOF) == (b == io.EOF) || a != nil && b != nil {
		t.Errorf("got %v and %v, want EOF and the end of the goroutine", a, b)
	}
}

type unruly struct{ text string }

func (u *unruly) Error() string { return u.text }

func BenchmarkCall(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		_ = Call("it", func() error { return nil })
	}
}
