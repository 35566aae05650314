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

// UnmarshalText is called by kong if the flag is given.
func (c *chosen) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("it is empty: omit it, or give a value")
	}
	*c = chosen(text)
	return nil
}

// storeFlags select the database.
type storeFlags struct {
	Target chosen `complete:"target" placeholder:"NAME" help:"Target, see once context. Default: $$ONCE_TARGET, then the current target."`
	URL    chosen `name:"url" placeholder:"URL" help:"URL of the database. $${NAME} is replaced by that environment variable."`
}

// session is an open store and its name.
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

// String names the target in confirmations.
func (s *session) String() string {
	if s.name == "" {
		return s.Target.String()
	}
	return s.name + " (" + s.Target.String() + ")"
}

// outputFlags select the output format.
type outputFlags struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"Output format: table or json."`
}

func (f outputFlags) json() bool { return f.Output == "json" }

func printJSON(v any) error { return show.JSON(os.Stdout, v) }

func newTable(heading ...string) *show.Table {
	return &show.Table{Heading: heading, Color: show.Colors(os.Stdout)}
}

// empty reports that a list is empty. With JSON the empty list itself says so.
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

// changeFlags are the flags of all verbs that change something.
type changeFlags struct {
	Reason string `required:"" placeholder:"TEXT" help:"Why, and how you know. It is stored with each change."`
	By     string `placeholder:"NAME" help:"Name for the audit line. Default: $$ONCE_BY, then your user name."`
	Yes    bool   `short:"y" help:"Skip confirmation."`
}

// maxFlags limit a bulk change or turn it into a dry run.
type maxFlags struct {
	Limit  *int `placeholder:"N" help:"Change at most this many."`
	DryRun bool `help:"Count the matches without changing them."`
}

// limit returns the limit of the change, or 0 for none.
func (f maxFlags) limit() int {
	if f.Limit == nil {
		return 0
	}
	return *f.Limit
}

func (f maxFlags) check() error {
	if f.Limit != nil && *f.Limit < 1 {
		return fmt.Errorf("--limit is %d: use 1 or more", *f.Limit)
	}
	return nil
}

// A store keeps 500 bytes of a reason, in which the name and a few words stand in front.
const longestReason, longestName = 400, 80

// Validate is called by kong.
func (f *changeFlags) Validate() error {
	if strings.TrimSpace(f.Reason) == "" {
		return fmt.Errorf("--reason is empty: say why, and how you know")
	}
	if len(f.Reason) > longestReason {
		return fmt.Errorf("--reason has %d bytes, but only %d are stored: shorten it", len(f.Reason), longestReason)
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
		return "", usage("your user name could not be determined: add --by or set ONCE_BY")
	}
	if len(name) > longestName {
		return "", usage("--by, or ONCE_BY, has %d bytes, but only %d are stored: shorten it", len(name), longestName)
	}
	return show.Line(name), nil
}

// confirm describes the change and asks for confirmation, unless --yes was given.
func (f *changeFlags) confirm(ctx context.Context, s *session, what string) error {
	note("On %s:\n%s", s, what)
	if f.Yes {
		return nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return usage("cannot ask for confirmation without a terminal: add --yes")
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

// audit writes an audit line to standard error.
func audit(s *session, deed, by, reason string, what ...any) {
	auditLog().Info("once: "+deed, append(what, "by", by, "reason", reason, "target", s.String())...)
}

func auditLog() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

// logged are the options of a store whose log is part of the audit.
func logged() *target.Options { return &target.Options{Options: once.Options{Logger: auditLog()}} }

// keyArgs name a key. Its parts are separate arguments, so that no character in a
// part can be mistaken for a separator.
type keyArgs struct {
	Scope     string `placeholder:"TEXT" help:"Scope of the key."`
	Operation string `arg:"" complete:"operation" help:"Operation of the key: pay, or pay/charge for a step."`
	ID        string `arg:"" name:"id" help:"ID of the key."`
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
