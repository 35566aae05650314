//go:build linux

package docs

import (
	"encoding/json"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once/integration/faults/engine"
)

// The names of hosts, databases, users and files in the documents. In commands
// and in the shown configuration, each is replaced by its counterpart in the
// world. An unused name is an error.
func (w *world) names() []pair {
	return []pair{
		{"ops:${PROD_PASSWORD}@db.internal/shop", w.postgresUser + ":${PROD_PASSWORD}@" + w.postgresPlace},
		{"sslmode=verify-full", "sslmode=disable"},
		{"ops:${SHOP_PASSWORD}@db.internal:3306/shop", w.mariadbUser + ":${SHOP_PASSWORD}@" + w.mariadbPlace},
		{"tls=true", "tls=false"},
		{"/var/lib/shop/", w.dir + "/var/"},
		{"/path/to/", filepath.Dir(w.checkout) + "/"},
		{"/tmp/repro", w.dir + "/repro"},
		{"DATABASE_URL=postgres://...", "DATABASE_URL='" + w.postgres + "'"},
		{"127.0.0.1:9464", "127.0.0.1:0"}, // a free port
		{"127.0.0.1:9465", "127.0.0.1:0"},
		{"--seconds 1", "--seconds 0.2"}, // of a benchmark, of which nothing but the end is looked at
	}
}

// secrets are the environment variables that the documents name.
func (w *world) secrets() []string {
	return []string{
		"PROD_PASSWORD=" + w.postgresPassword,
		"SHOP_PASSWORD=" + w.mariadbPassword,
		"SHOP_URL=sqlite:" + w.dir + "/var/shop.db",
		"PARTNER_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"ALL_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"SEAL_SECRET=2026-11:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
		"CHARGE_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
	}
}

type pair struct{ document, here string }

// world is the environment of the commands: a copy of the checkout, once in the
// PATH, and databases with records.
type world struct {
	dir, checkout, program string

	postgres, postgresUser, postgresPassword, postgresPlace string
	mariadbUser, mariadbPassword, mariadbPlace              string

	conn       *pgx.Conn // to the PostgreSQL
	before     string    // SQL that makes its rows what they were
	configured string    // the configuration of once serve that is shown
}

// newWorld returns a complete world.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := new(world)
	w.takeDatabases(t) // or skip
	w.furnish(t)
	w.seed(t)
	w.write(t, filepath.Join(w.checkout, "charge.json"), `{"charge":"ch_99"}`)
	w.configured = configuration(t)
	w.write(t, filepath.Join(w.checkout, "once.toml"), w.here(w.configured))
	w.write(t, filepath.Join(w.program, "go.mod"), "module program\n\ngo 1.24\n")
	w.write(t, filepath.Join(w.program, "main.go"), "package main\n\nimport (\n\t_ \"github.com/effectively-once/once\"\n"+
		"\t_ \"github.com/effectively-once/once/store/sqlstore\"\n)\n\nfunc main() {}\n")
	return w
}

// furnish creates the directories, copies the checkout and builds once.
func (w *world) furnish(t *testing.T) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	w.dir, w.checkout, w.program = dir, filepath.Join(dir, "once"), filepath.Join(dir, "program")
	for _, sub := range []string{"bin", "var", "program", "tmp"} {
		must(t, os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	w.copyCheckout(t)
	build := exec.Command("go", "build", "-o", filepath.Join(w.dir, "bin", "once"), "./cmd/once")
	build.Dir, build.Env = w.checkout, w.environment(t, newHome(t))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
}

func (w *world) takeDatabases(t *testing.T) {
	t.Helper()
	w.postgres = engine.Engine{Name: engine.PGStore}.FreshDatabase(t)
	u, err := url.Parse(w.postgres)
	must(t, err)
	w.postgresUser = u.User.Username()
	w.postgresPassword, _ = u.User.Password()
	w.postgresPlace = u.Host + u.Path
	config, err := mysql.ParseDSN(engine.Engine{Name: engine.MariaDB}.Fresh(t))
	must(t, err)
	w.mariadbUser, w.mariadbPassword, w.mariadbPlace = config.User, config.Passwd, config.Addr+"/"+config.DBName
	if config.Net != "tcp" {
		t.Fatalf("the MariaDB is at %s %s: use TCP", config.Net, config.Addr)
	}
}

// copyCheckout copies the files, so that commands may write to their directory.
func (w *world) copyCheckout(t *testing.T) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" {
			return map[bool]error{true: fs.SkipDir}[d.IsDir()]
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		to := filepath.Join(w.checkout, name)
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Mkdir(to, 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, info.Mode().Perm())
	}))
}

// newHome returns an empty home directory in which Go telemetry, which would run
// in the background, is off.
func newHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	telemetry := filepath.Join(home, ".config", "go", "telemetry")
	must(t, os.MkdirAll(telemetry, 0o700))
	must(t, os.WriteFile(filepath.Join(telemetry, "mode"), []byte("off\n"), 0o600))
	return home
}

// environment returns the environment of a command. Builds use -trimpath, so the
// build cache works although each world has another path. They do not use the
// race detector.
func (w *world) environment(t *testing.T, home string) []string {
	t.Helper()
	out, err := exec.Command("go", "env", "-json", "GOCACHE", "GOMODCACHE", "GOPATH", "GOENV", "GOFLAGS").Output()
	must(t, err)
	var own map[string]string
	must(t, json.Unmarshal(out, &own))
	own["GOFLAGS"] = strings.TrimSpace(own["GOFLAGS"] + " -trimpath")
	own["CGO_ENABLED"] = "0"
	own["HOME"], own["XDG_CONFIG_HOME"] = home, filepath.Join(home, ".config")
	own["TMPDIR"] = filepath.Join(w.dir, "tmp")
	own["PATH"] = filepath.Join(w.dir, "bin") + ":" + os.Getenv("PATH")
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return own[name] != "" || name == "GOWORK" || name == "ENV" || name == "BASH_ENV" || strings.HasPrefix(name, "ONCE_") ||
			strings.HasPrefix(name, "MAKE") || name == "MFLAGS"
	})
	for name, value := range own {
		env = append(env, name+"="+value)
	}
	return append(env, w.secrets()...)
}

// here replaces the names of the documents by those of the world.
func (w *world) here(text string) string {
	for _, p := range w.names() {
		text = strings.ReplaceAll(text, p.document, p.here)
	}
	return text
}

// configuration returns the configuration shown in docs/operating.md.
func configuration(t *testing.T) string {
	t.Helper()
	for _, f := range fences(t) {
		if f.page == "docs/operating.md" && f.kind == "toml" {
			return strings.Join(f.text, "\n") + "\n"
		}
	}
	t.Fatal("docs/operating.md shows no configuration")
	return ""
}

func (w *world) write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// shell returns a shell for a page, with prod as the target in use.
func (w *world) shell(t *testing.T) *shell {
	t.Helper()
	s := newShell(t, w.checkout, w.environment(t, newHome(t)))
	w.mustRun(t, s, w.here("once context set prod 'postgres://ops:${PROD_PASSWORD}@db.internal/shop?sslmode=verify-full'"))
	return s
}

func (w *world) mustRun(t *testing.T, s *shell, text string) (said string) {
	t.Helper()
	status, said, _ := s.run(t, text, nil)
	if status != 0 {
		t.Fatalf("%s: exit status %d:\n%s", text, status, said)
	}
	return said
}

// exec runs SQL on PostgreSQL.
func (w *world) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := w.conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
}
