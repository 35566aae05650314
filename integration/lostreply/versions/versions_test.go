// Package versions_test runs the tests of package lostreply with other versions
// of the drivers than that of the workspace. Each .mod file in this folder is
// the go.mod of such a build. To add one:
//
//	cp pgx-v5.12.0.mod pgx-v5.14.0.mod   # and change the versions in it
//	(cd ../.. && GOWORK=off go test -mod=mod -modfile=lostreply/versions/pgx-v5.14.0.mod -c -o /dev/null ./lostreply)
//	(cd ../../.. && ONCE_SOAK=1m go run ./integration/cmd/servers -- go test -v -timeout 0 ./integration/lostreply/versions)
//
// Add the lines that the last command logs to ../testdata/seen.txt and
// docs/lost-replies.md.
package versions_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

// always are the versions that every run tests. A soak also tests the others.
var always = []string{"pgx-v5.12.0"}

// soakVar is the variable that is set in a soak.
const soakVar = "ONCE_SOAK"

// briefly selects the tests whose results depend on the version of pgx.
const briefly = "TestUnguarded|TestEveryRequest/(sqlstore,_pgx|pgstore)$"

// endsOldVersions is the test in which versions up to v5.8.0 panic.
const endsOldVersions = "TestBatchesThatCannotBeSent"

func TestVersions(t *testing.T) {
	testenv.Postgres(t)
	testenv.MariaDB(t)
	soak := os.Getenv(soakVar) != ""
	files, err := filepath.Glob("*.mod")
	if err != nil || len(files) < len(always) {
		t.Fatalf("only %d versions: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".mod")
		pattern := "."
		if !soak {
			pattern = briefly
		}
		if soak || slices.Contains(always, name) {
			t.Run(name, func(t *testing.T) { try(t, name, pattern) })
		}
	}
}

// try builds the tests of package lostreply with a version, and runs them.
func try(t *testing.T, name, pattern string) {
	binary := filepath.Join(t.TempDir(), "lostreply.test")
	build := command(t, "go", "test", "-modfile=lostreply/versions/"+name+".mod", "-c", "-vet=off", "-o", binary, "./lostreply")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	seen := filepath.Join(t.TempDir(), "seen.txt")
	run := command(t, binary, "-test.run", pattern, "-test.skip", endsOldVersions)
	run.Dir = ".."
	run.Env = append(os.Environ(), "ONCE_LOST_REPLIES_REPORT="+seen)
	out, err := run.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	lines, err := os.ReadFile(seen)
	t.Logf("%s", lines)
	if want := "github.com/jackc/pgx/v5 " + strings.TrimPrefix(name, "pgx-") + " | "; !strings.Contains(string(lines), want) {
		t.Errorf("nothing was observed of %s: %v\n%s", name, err, out)
	}
}

func command(t *testing.T, name string, arguments ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, name, arguments...)
}
