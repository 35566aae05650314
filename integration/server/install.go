//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/testenv"
)

// ErrMayNotInstall reports that packages are missing and that this process may
// not install them.
var ErrMayNotInstall = errors.New("this is not root on a machine with apt-get")

// systemPath has the directories of servers, which the PATH of an ordinary user
// lacks.
const systemPath = ":/usr/local/sbin:/usr/sbin:/sbin"

// Missing returns the Debian packages to install before servers of these kinds
// can start.
func Missing(kinds ...Kind) []string {
	var packages []string
	for _, k := range kinds {
		if name, found := installed(k); !found {
			packages = append(packages, strings.Fields(name)...)
		}
	}
	return packages
}

// Need ends a test on a machine without the packages of the servers that it
// starts. It skips the test, or fails it under ONCE_TEST_REQUIRE=1. With -short
// it always skips.
func Need(t testing.TB, kinds ...Kind) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers of its own: run it without -short")
	}
	missing := strings.Join(Missing(kinds...), " ")
	switch {
	case missing == "":
	case os.Getenv(testenv.RequireVar) == "1":
		t.Fatalf("%s=1, but these packages are missing: %s; run it under \"make test\"", testenv.RequireVar, missing)
	default:
		t.Skipf("needs the packages %s: run it under \"make test\"", missing)
	}
}

func installed(k Kind) (debianPackage string, found bool) {
	var err error
	switch k {
	case Postgres:
		debianPackage = "postgresql"
		_, err = postgresBin()
	case MariaDB:
		debianPackage = "mariadb-server"
		_, err = newMariaDB()
	case PgBouncer:
		debianPackage = "pgbouncer"
		_, err = findProgram("pgbouncer")
	case RabbitMQ, RabbitMQs:
		debianPackage = "rabbitmq-server"
		_, err = newRabbitMQ(nil)
	case Redis:
		debianPackage = "redis-server"
		_, err = newRedis()
	case Galera:
		debianPackage = "galera-4 mariadb-server rsync"
		if _, err = os.Stat(galeraLibrary); err == nil {
			_, err = findProgram("rsync")
		}
	case Azurite:
		return absent("node npm", "npm npm") // which needs nodejs, and installs the rest
	case Kafka, SQS:
		return absent("mvn maven", debianJava+" default-jre-headless")
	case Chromium:
		return absent("chromium chromium", "node npm", "npm npm")
	case Spin:
		return absent("spin spin", "gcc gcc libc6-dev")
	case DynamoDB:
		debianPackage = "python3-venv"
		err = hasVenv()
	}
	return debianPackage, err == nil
}

// absent returns the packages of the programs that are missing, each given with its
// own. Debian's may conflict with those that a machine has from elsewhere.
func absent(programs ...string) (debianPackages string, found bool) {
	var packages []string
	for _, one := range programs {
		program, name, _ := strings.Cut(one, " ")
		if _, err := findProgram(program); err != nil && !slices.Contains(packages, name) {
			packages = append(packages, name)
		}
	}
	return strings.Join(packages, " "), len(packages) == 0
}

func findProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for dir := range strings.SplitSeq(systemPath[1:], ":") {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: run the servers tool with -install", name)
}

// postgresBin returns the directory of the newest PostgreSQL. Debian keeps each
// major version in its own directory.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		path, err := findProgram("initdb")
		return filepath.Dir(path), err
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return majorVersion(a) - majorVersion(b) })
	return filepath.Dir(newest), nil
}

func majorVersion(initdb string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb)))) // a name that is not a number sorts first
	return n
}

// Install installs the missing packages of these kinds with apt-get, without
// starting services. If it may not, it returns ErrMayNotInstall with the
// command to run.
func Install(ctx context.Context, log io.Writer, kinds ...Kind) error {
	missing := Missing(kinds...)
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%w; run this once, then try again:\nsudo apt-get install -y --no-install-recommends %s",
			ErrMayNotInstall, strings.Join(missing, " "))
	}
	a := &apt{policy: "/usr/sbin/policy-rc.d", lists: "/var/lib/apt/lists", get: func(ctx context.Context, args ...string) error {
		return aptGet(ctx, log, args...)
	}}
	if err := a.install(ctx, missing); err != nil {
		return err
	}
	if missing = Missing(kinds...); len(missing) > 0 {
		return fmt.Errorf("installed, but the programs of %s are not where they are expected", strings.Join(missing, " "))
	}
	return nil
}

func aptGet(ctx context.Context, log io.Writer, args ...string) error {
	// Another apt may be running: wait for its lock.
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = log, log
	// Never interrupt dpkg.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// apt installs packages without letting them start services.
type apt struct {
	policy string // script that invoke-rc.d asks before it starts a service
	lists  string // directory of package lists
	get    func(ctx context.Context, args ...string) error
}

// refusal is the script. Its text tells it apart from another policy.
const refusal = `#!/bin/sh
# Written by the servers tool of once, which installs packages and wants no service started. It removes this again.
exit 101
`

func (a *apt) install(ctx context.Context, packages []string) (err error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.forbid(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.restore()) }()

	install := append([]string{"install", "-y", "--no-install-recommends"}, packages...)
	if lists, _ := filepath.Glob(filepath.Join(a.lists, "*_Packages*")); len(lists) > 0 {
		if err := a.get(ctx, install...); err == nil || ctx.Err() != nil {
			return err
		}
		// Outdated lists name files that no longer exist.
	}
	if err := a.get(ctx, "update"); err != nil {
		return err
	}
	return a.get(ctx, install...)
}

// lock excludes a second tool, which would mistake this one's policy for the
// machine's. It locks the directory, because a lock file would stay.
func (a *apt) lock(ctx context.Context) (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(a.policy))
	if err != nil {
		return nil, err
	}
	pause := backoff.Backoff{First: 100 * time.Millisecond, Limit: time.Second}
	for {
		free, err := tryLock(dir)
		if err == nil && !free {
			err = backoff.Sleep(ctx, pause.Next())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("wait for another installation: %w", err), dir.Close())
		}
		if free {
			return func() { _ = dir.Close() }, nil
		}
	}
}

func (a *apt) aside() string { return a.policy + ".before-once" }

// forbid replaces the machine's policy, if there is one.
func (a *apt) forbid() error {
	if err := a.restore(); err != nil { // a killed tool left its policy
		return err
	}
	if err := os.Rename(a.policy, a.aside()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(a.policy, []byte(refusal), 0o755); err != nil {
		return errors.Join(err, a.restore())
	}
	return nil
}

// restore undoes a complete or partial forbid.
func (a *apt) restore() error {
	text, err := os.ReadFile(a.policy)
	if err == nil && strings.HasPrefix(refusal, string(text)) { // it may be incomplete
		err = os.Remove(a.policy)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(a.aside(), a.policy); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
