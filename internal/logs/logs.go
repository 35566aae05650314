// Package logs makes the loggers of options, and spaces messages that repeat.
package logs

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"
)

// every is how often a message that is spaced is logged at most, and most is
// how many messages are remembered.
const (
	every = time.Minute
	most  = 1000
)

// Of returns the logger that an option stands for: nil is [slog.Default], as it
// is when something is logged. Messages with [Spaced] are spaced.
func Of(l *slog.Logger) *slog.Logger {
	if l == nil {
		return newLogger(standard{}, time.Now)
	}
	if _, done := l.Handler().(*handler); done {
		return l
	}
	return newLogger(l.Handler(), time.Now)
}

func newLogger(to slog.Handler, now func() time.Time) *slog.Logger {
	return slog.New(&handler{Handler: to, said: &said{now: now, last: make(map[thing]*state)}})
}

// Spaced marks a message that may be logged very often about one thing, such as
// a store that cannot be reached. The first is logged at once, and then at most
// one in a minute, with the number of times that it was to be logged since the
// one before. The same message about something else, or from a logger with
// other attributes, is another message.
func Spaced(about string) slog.Attr { return slog.Any("", mark(about)) }

type mark string

// thing is what a message is about.
type thing struct {
	with, message, about string
}

type state struct {
	at    time.Time // when it was logged last
	times int       // since then
}

// said remembers what was logged.
type said struct {
	now  func() time.Time
	mu   sync.Mutex
	last map[thing]*state
}

// again returns how many times a message stands for, or 0 if it is not logged.
func (s *said) again(t thing) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	last := s.last[t]
	if last == nil {
		if len(s.last) >= most {
			s.forget(now)
		}
		if len(s.last) < most {
			s.last[t] = &state{at: now}
		}
		return 1
	}
	last.times++
	if now.Sub(last.at) < every {
		return 0
	}
	times := last.times
	last.at, last.times = now, 0
	return times
}

// forget removes messages that are old enough to be logged again.
func (s *said) forget(now time.Time) {
	for t, last := range s.last {
		if now.Sub(last.at) >= every {
			delete(s.last, t)
		}
	}
}

// handler spaces the messages that are marked.
type handler struct {
	slog.Handler
	said *said
	with string // the attributes and groups of the logger
}

// Handle passes a message on, unless it was logged a short time ago.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var about *mark
	r.Attrs(func(a slog.Attr) bool {
		if m, marked := a.Value.Any().(mark); marked {
			about = &m
		}
		return about == nil
	})
	if about == nil {
		return h.Handler.Handle(ctx, r)
	}
	times := h.said.again(thing{h.with, r.Message, string(*about)})
	if times == 0 {
		return nil
	}
	said := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if _, marked := a.Value.Any().(mark); !marked {
			said.AddAttrs(a)
		}
		return true
	})
	if times > 1 {
		said.AddAttrs(slog.Int("times", times))
	}
	return h.Handler.Handle(ctx, said)
}

// WithAttrs is for [slog.Logger.With].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := h.with
	for _, a := range attrs {
		with += a.String() + "\n"
	}
	return &handler{h.Handler.WithAttrs(attrs), h.said, with}
}

// WithGroup is for [slog.Logger.WithGroup].
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.said, h.with + name + "\n"}
}

// standard logs to slog.Default().
type standard struct {
	with func(slog.Handler) slog.Handler // its attributes and groups; nil: none
}

// current returns the handler of slog.Default(). Whoever has made a logger of
// this package the default would have it wait for itself.
func current() slog.Handler {
	h := slog.Default().Handler()
	if own, ok := h.(*handler); ok {
		if _, loops := own.Handler.(standard); loops {
			return slog.NewTextHandler(os.Stderr, nil)
		}
	}
	return h
}

// Enabled asks the current default logger.
func (s standard) Enabled(ctx context.Context, level slog.Level) bool {
	return current().Enabled(ctx, level)
}

// Handle passes a message on to the current default logger.
func (s standard) Handle(ctx context.Context, r slog.Record) error {
	return s.on(current()).Handle(ctx, r)
}

// WithAttrs is for [slog.Logger.With].
func (s standard) WithAttrs(attrs []slog.Attr) slog.Handler {
	return standard{func(h slog.Handler) slog.Handler { return s.on(h).WithAttrs(attrs) }}
}

// WithGroup is for [slog.Logger.WithGroup].
func (s standard) WithGroup(name string) slog.Handler {
	return standard{func(h slog.Handler) slog.Handler { return s.on(h).WithGroup(name) }}
}

func (s standard) on(h slog.Handler) slog.Handler {
	if s.with == nil {
		return h
	}
	return s.with(h)
}
