package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// text returns a handler that writes without times, and what it has written.
func text() (slog.Handler, func() string) {
	var written bytes.Buffer
	h := slog.NewTextHandler(&written, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return h, func() string {
		defer written.Reset()
		return written.String()
	}
}

// setDefault changes slog.Default() for the time of a test.
func setDefault(t *testing.T, h slog.Handler) {
	before := slog.Default()
	slog.SetDefault(slog.New(h))
	t.Cleanup(func() { slog.SetDefault(before) })
}

// TestNilIsTheDefaultOfNow: a logger that was made before slog.SetDefault logs
// to the new default, with its attributes and groups.
func TestNilIsTheDefaultOfNow(t *testing.T) {
	l := Of(nil)
	with := l.With("consumer", "billing").WithGroup("g").With("a", 1)
	h, written := text()
	setDefault(t, h)
	l.Info("one", "b", 2)
	with.Warn("two", "b", 2)
	l.Debug("three")
	if got, want := written(), "level=INFO msg=one b=2\nlevel=WARN msg=two consumer=billing g.a=1 g.b=2\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	setDefault(t, slog.DiscardHandler)
	l.Error("four")
	if got := written(); got != "" || l.Enabled(t.Context(), slog.LevelError) {
		t.Errorf("got %q", got)
	}
}

// TestTheDefaultIsOurs: it does not call itself.
func TestTheDefaultIsOurs(t *testing.T) {
	setDefault(t, Of(nil).With("a", 1).Handler())
	Of(nil).Info("one")
	slog.Info("two")
}

func TestAnExplicitLoggerIsKept(t *testing.T) {
	other, standard := text()
	setDefault(t, other)
	h, written := text()
	l := Of(slog.New(h).With("a", 1))
	if Of(l) != l {
		t.Error("it is wrapped twice")
	}
	l.Error("one", "b", 2)
	if got := written(); got != "level=ERROR msg=one a=1 b=2\n" || standard() != "" {
		t.Errorf("got %q", got)
	}
	Of(slog.New(slog.DiscardHandler)).Error("two")
	if got := standard(); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestSpaced(t *testing.T) {
	h, written := text()
	now := time.Unix(0, 0)
	l := newLogger(h, func() time.Time { return now })
	down := errors.New("down")
	say := func(l *slog.Logger, about string, times int) {
		for range times {
			l.Warn("trouble", Spaced(about), "error", down)
		}
	}
	want := func(lines ...string) {
		t.Helper()
		if got, want := written(), strings.Join(append(lines, ""), "\n"); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	const line = "level=WARN msg=trouble error=down"
	say(l, "", 1)
	want(line) // at once
	say(l, "", 5)
	want()
	say(l, "another", 2)
	say(l.With("consumer", "a"), "", 2)
	say(l.With("consumer", "b"), "", 2)
	l.Warn("other trouble", Spaced(""))
	want(line, "level=WARN msg=trouble consumer=a error=down", "level=WARN msg=trouble consumer=b error=down", "level=WARN msg=\"other trouble\"")
	now = now.Add(every - 1)
	say(l, "", 3)
	want()
	now = now.Add(1)
	say(l, "", 3)
	want(line + " times=9")
	now = now.Add(10 * every)
	say(l, "", 1)
	want(line + " times=3")
	now = now.Add(every)
	say(l, "", 1)
	want(line)
	for range 3 {
		l.Warn("not spaced")
	}
	want("level=WARN msg=\"not spaced\"", "level=WARN msg=\"not spaced\"", "level=WARN msg=\"not spaced\"")
}

// TestManyThings: what is remembered is bounded, and what does not fit is logged.
func TestManyThings(t *testing.T) {
	h, written := text()
	now := time.Unix(0, 0)
	l := newLogger(h, func() time.Time { return now })
	say := func(i int) int {
		l.Warn("trouble", Spaced(fmt.Sprint(i)))
		return strings.Count(written(), "trouble")
	}
	for i := range most {
		say(i)
	}
	if first, again, more := say(0), say(most), say(most); first != 0 || again != 1 || more != 1 {
		t.Errorf("logged %d, %d, %d", first, again, more)
	}
	now = now.Add(every)
	if first, again := say(most), say(most); first != 1 || again != 0 {
		t.Errorf("logged %d, %d", first, again)
	}
	if n := len(l.Handler().(*handler).said.last); n != 1 {
		t.Errorf("%d are remembered", n)
	}
}

// counting counts what is logged.
type counting struct {
	slog.Handler
	lines, times atomic.Int64
}

func (c *counting) Enabled(context.Context, slog.Level) bool { return true }

func (c *counting) Handle(_ context.Context, r slog.Record) error {
	c.lines.Add(1)
	times := int64(1)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "times" {
			times = a.Value.Int64()
		}
		return true
	})
	c.times.Add(times)
	return nil
}

// TestConcurrently: each time is counted once.
func TestConcurrently(t *testing.T) {
	to := &counting{Handler: slog.DiscardHandler}
	var clock atomic.Int64
	l := newLogger(to, func() time.Time { return time.Unix(clock.Load(), 0) })
	const workers, each = 8, 500
	var all sync.WaitGroup
	for range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range each {
				if i%100 == 0 {
					clock.Add(61)
				}
				l.Warn("trouble", Spaced(""))
			}
		}()
	}
	all.Wait()
	clock.Add(61)
	l.Warn("trouble", Spaced(""))
	if to.times.Load() != workers*each+1 || to.lines.Load() > workers*each/100+2 {
		t.Errorf("%d lines for %d times", to.lines.Load(), to.times.Load())
	}
}
