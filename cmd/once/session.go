package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// chosen is what a flag chooses by: never empty, as a variable of a shell that is not set would make it. Left out, it
// means another thing: all, or the target in use.
type chosen string

// UnmarshalText is called by kong for a flag that is given.
func (c *chosen) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("it is empty: leave it out, or give a value")
	}
	*c = chosen(text)
	return nil
}

// storeFlags choose the database.
type storeFlags struct {
	Target chosen `placeholder:"NAME" help:"The target, see once context. Default: $$ONCE_TARGET, then the one in use."`
	URL    chosen `name:"url" placeholder:"URL" help:"A database without a name; $${NAME} in it is a variable of the environment."`
}

// session is a store that is open, and what it is called.
type session struct {
	*target.Target
	name string
}

func (f storeFlags) open(ctx context.Context) (*session, error) { return f.openWith(ctx, nil) }

func (f storeFlags) openWith(ctx context.Context, o *target.Options) (*session, error) {
	from, name, err := target.Choose(string(f.URL), string(f.Target))
	if err != nil {
		return nil, err
	}
	t, err := target.Open(ctx, from, o)
	if err != nil {
		return nil, err
	}
	return &session{Target: t, name: name}, nil
}

// String names the target for people, who should see which one it is before they change it.
func (s *session) String() string {
	if s.name == "" {
		return s.Target.String()
	}
	return s.name + " (" + s.Target.String() + ")"
}

// outputFlags choose the form of the answer.
type outputFlags struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"Its form: table, or json."`
}

func (f outputFlags) json() bool { return f.Output == "json" }

func printJSON(v any) error { return show.JSON(os.Stdout, v) }

func newTable(heading ...string) *show.Table {
	return &show.Table{Heading: heading, Color: show.Colors(os.Stdout)}
}

// empty says that a list has nothing in it: nobody is to wonder whether the command has looked. JSON says so by itself.
func empty(o outputFlags, what string, narrowed bool) {
	switch {
	case o.json():
	case narrowed:
		note("There is no such %s.", what)
	default:
		note("There is no %s yet.", what)
	}
}

func note(format string, args ...any) {
	fmt.Fprintln(os.Stderr, show.Lines(fmt.Sprintf(format, args...)))
}

// changeFlags belong to everything that changes something.
type changeFlags struct {
	Reason string `required:"" placeholder:"TEXT" help:"Why, and how it is known. It is kept with what is changed."`
	By     string `placeholder:"NAME" help:"Who decides. Default: $$ONCE_BY, then your name on this machine."`
	Yes    bool   `short:"y" help:"Do not ask."`
}

// maxFlags bound a change, or only count.
type maxFlags struct {
	Limit  *int `placeholder:"N" help:"At most so many."`
	DryRun bool `help:"Count, and change nothing."`
}

// limit is 0 if there is no limit.
func (f maxFlags) limit() int {
	if f.Limit == nil {
		return 0
	}
	return *f.Limit
}

func (f maxFlags) check() error {
	if f.Limit != nil && *f.Limit < 1 {
		return fmt.Errorf("--limit is %d: give 1 or more", *f.Limit)
	}
	return nil
}

// A store keeps 500 bytes of a reason, in which the name and a few words stand in front.
const longestReason, longestName = 400, 80

// Validate is called by kong.
func (f *changeFlags) Validate() error {
	if strings.TrimSpace(f.Reason) == "" {
		return fmt.Errorf("--reason is empty: say why, and how it is known")
	}
	if len(f.Reason) > longestReason {
		return fmt.Errorf("--reason has %d bytes, and %d are kept: shorten it", len(f.Reason), longestReason)
	}
	return nil
}

func (f *changeFlags) by() (string, error) {
	name := cmp.Or(f.By, os.Getenv("ONCE_BY"))
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	if strings.TrimSpace(name) == "" {
		return "", usage("your name is not known: give --by, or set ONCE_BY")
	}
	if len(name) > longestName {
		return "", usage("--by, or ONCE_BY, has %d bytes, and %d are kept: shorten it", len(name), longestName)
	}
	return show.Line(name), nil
}

// confirm says what will be done, and asks, unless --yes was given.
func (f *changeFlags) confirm(ctx context.Context, s *session, what string) error {
	note("On %s:\n%s", s, what)
	if f.Yes {
		return nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return usage("there is nobody to ask: add --yes")
	}
	fmt.Fprint(os.Stderr, "Go on? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case given := <-answer:
		if given == "y" || given == "yes" {
			return nil
		}
		note("Nothing was changed.")
		return errNo
	}
}

// audit writes down what was decided, for whoever collects what commands say.
func audit(s *session, deed, by, reason string, what ...any) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	log.Info("once: "+deed, append(what, "by", by, "reason", reason, "target", s.String())...)
}

// keyArgs name a key. Its parts stand apart, so that no character in one of them can be taken for the end of it.
type keyArgs struct {
	Scope     string `placeholder:"TEXT" help:"The key's scope, if it has one."`
	Operation string `arg:"" help:"The key's operation: pay, or pay/charge for a step."`
	ID        string `arg:"" name:"id" help:"The key's ID."`
}

func (a keyArgs) key() (once.Key, error) {
	k := once.Key{Scope: a.Scope, Operation: a.Operation, ID: a.ID}
	if err := k.Validate(); err != nil {
		return k, usage("%v", err)
	}
	return k, nil
}

func describe(k once.Key) string {
	text := show.Quote(k.ID) + " of " + show.Line(k.Operation)
	if k.Scope != "" {
		text += " in scope " + show.Quote(k.Scope)
	}
	return text
}

func seconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000Z")
}
