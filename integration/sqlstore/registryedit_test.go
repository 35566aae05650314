package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

// deathVar makes this binary a process that edits consumers, and is killed at a
// statement: "engine driver verb consumer statement DSN".
const deathVar = "ONCE_TEST_EDIT_CONSUMER"

func TestMain(m *testing.M) {
	if plan := os.Getenv(deathVar); plan != "" {
		if err := editAndDie(plan); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var edits = inbox.Decision{By: "ann", Reason: "ticket 88"}

// edit is what a person does, and does again after a crash.
func edit(ctx context.Context, s *sqlstore.Store, verb, name string) error {
	if verb == "rename" {
		return s.RenameConsumer(ctx, name, name+"-new")
	}
	_, err := inbox.Admin{Store: noSilence{s}}.Retire(ctx, name, true, edits)
	return err
}

// noSilence is a store whose consumers seem to have been silent for an hour.
type noSilence struct{ *sqlstore.Store }

func (s noSilence) Consumers(ctx context.Context) ([]store.Consumer, error) {
	all, err := s.Store.Consumers(ctx)
	for i := range all {
		all[i].Seen += time.Hour
	}
	return all, err
}

func (s noSilence) RetireConsumer(ctx context.Context, r store.Retirement) error {
	r.Silence = 0
	return s.Store.RetireConsumer(ctx, r)
}

func editAndDie(plan string) error {
	parts := strings.SplitN(plan, " ", 6)
	dialect := slices.IndexFunc(engines, func(e engine) bool { return e.name == parts[0] })
	at, err := strconv.Atoi(parts[4])
	if err != nil || dialect < 0 {
		return errors.New("the plan is " + plan)
	}
	db, err := sql.Open(parts[1], parts[5])
	if err != nil {
		return err
	}
	calls := 0
	dying := sql.OpenDB(hookedDriver{db.Driver(), parts[5], func(context.Context, string) func() {
		if calls++; calls == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // it takes effect at once, or soon
		}
		return func() {}
	}})
	return edit(context.Background(), sqlstore.New(dying, engines[dialect].dialect, nil), parts[2], parts[3])
}

// A process that renames or retires a consumer may be killed at any statement.
// What it leaves is the state before or after its transaction, and the same call
// finishes it.
func TestEditorsOfConsumersAreKilledAtEveryStatement(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		step := 1
		if os.Getenv("ONCE_SOAK") == "" {
			step = 4
		}
		for _, verb := range []string{"rename", "retire"} {
			s, db := e.migrated(t)
			killed, at := 0, 1
			for ; killEditor(t, e, s, db, verb, at); at += step {
				killed++
			}
			if want := 12 / step; killed < want {
				t.Errorf("%s was killed at %d statements only", verb, killed)
			}
		}
	})
}

// killEditor kills an editor, and checks what it leaves. It returns false if the
// editor finished before.
func killEditor(t *testing.T, e engine, s *sqlstore.Store, db *sql.DB, verb string, at int) (killed bool) {
	t.Helper()
	ctx, name := t.Context(), fmt.Sprint("billing-", at)
	for _, c := range []store.Consumer{{Name: name, Source: "queue 1"}, {Name: name, Source: "queue 2", SharedWith: "queue 1"},
		{Name: name + "@2", Source: "queue 1"}} {
		_, err := s.Register(ctx, c)
		must(t, err)
	}
	for _, partition := range []string{"p0", "p1"} {
		must(t, s.SetPosition(ctx, store.Position{Consumer: name, Partition: partition, Log: "log", Offset: 41}))
	}
	first, second := aside("1", "k"), aside("2", "k")
	first.Consumer, second.Consumer = name, name
	must(t, s.Shelve(ctx, []store.Shelved{first, second}))

	driver := map[string]string{"sqlite": "sqlite", "postgres": "pgx", "mariadb": "mysql"}[e.name]
	dsn, _ := dsns.Load(db)
	self, err := os.Executable()
	must(t, err)
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s %d %s", deathVar, e.name, driver, verb, name, at, dsn))
	said := new(bytes.Buffer)
	child.Stderr = said
	err = child.Run()
	if status, ok := child.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		killed = true
	} else if err != nil {
		t.Fatalf("%s at %d: %v: %s", verb, at, err, said)
	}
	before, after := editedTo(t, s, verb, name)
	if !before && !after {
		t.Fatalf("%s, killed at statement %d, left something between", verb, at)
	}
	if !after {
		if !killed {
			t.Fatalf("%s has finished, and changed nothing", verb)
		}
		must(t, edit(ctx, s, verb, name))
		if _, after = editedTo(t, s, verb, name); !after {
			t.Errorf("%s, killed at statement %d, was not finished by the same call", verb, at)
		}
	}
	return killed
}

// editedTo reports whether all is as it was before an edit, except for messages
// that were given up, or as it is after the edit.
func editedTo(t *testing.T, s *sqlstore.Store, verb, name string) (before, after bool) {
	t.Helper()
	all, err := s.Consumers(t.Context())
	must(t, err)
	var names []string
	for _, c := range all {
		if plain, _, _ := strings.Cut(c.Name, "@"); plain != name && plain != name+"-new" {
			continue
		}
		source, _ := store.SplitSource(c.Source)
		names = append(names, c.Name+" "+source+" "+c.Keys)
	}
	positions, err := s.Positions(t.Context(), name)
	must(t, err)
	logs := fmt.Sprint(len(positions), " ", positions[0].Log, " ", positions[1].Log)
	open, err := s.Shelved(t.Context(), store.ShelfQuery{Consumer: name, States: []store.ShelfState{store.Waiting, store.Parked}})
	must(t, err)
	is := strings.Join(names, "; ")
	rows := func(first, rebuild string) string {
		return strings.NewReplacer("NEW", name+"-new", "OLD", name).Replace(first + "; " + rebuild)
	}
	before = is == rows("OLD queue 1 OLD; OLD queue 2 OLD", "OLD@2 queue 1 OLD@2") && logs == "2 log log"
	if verb == "rename" {
		return before && len(open) == 2, is == rows("NEW queue 1 OLD; NEW queue 2 OLD", "NEW@2 queue 1 OLD@2") && logs == "2 log log" && len(open) == 2
	}
	return before, is == rows("OLD (retired) OLD", "OLD@2 queue 1 OLD@2") && logs == "2 (retired) (retired)" && len(open) == 0
}
