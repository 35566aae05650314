//go:build linux

package server

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// dynamodbPackages are moto and all that it needs, with their checksums. To
// renew them, run pip-compile --generate-hashes --strip-extras --no-annotate on
// moto[dynamodb], flask and flask-cors.
//
//go:embed dynamodb.txt
var dynamodbPackages []byte

//go:embed dynamodb.py
var dynamodbProgram string

// dynamodb is moto, an imitation of DynamoDB in Python, because the vendor's own
// is not free software. Its data are in memory, so a restart forgets them.
type dynamodb struct{ python string }

func newDynamoDB() (*dynamodb, error) {
	dir, err := dynamodbCache()
	if err != nil {
		return nil, err
	}
	return &dynamodb{python: filepath.Join(dir, "bin", "python")}, nil
}

// dynamodbCache returns where the packages are kept between runs. What root
// installs, the account of the server has to read.
func dynamodbCache() (string, error) {
	parent, err := cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, "once-servers", fmt.Sprintf("dynamodb-%x", sha256.Sum256(dynamodbPackages))[:25]), nil
}

// debianPython is not the first python3 of the PATH, which the account of the
// server may not be allowed to run.
const debianPython = "/usr/bin/python3"

// hasVenv reports whether Python can make virtual environments.
func hasVenv() error {
	found, err := filepath.Glob("/usr/lib/python3*/ensurepip/__main__.py")
	if err == nil && len(found) == 0 {
		err = errors.New("python3-venv is not installed: run the servers tool with -install")
	}
	return err
}

// provide installs the packages, unless an earlier run has.
func (e *dynamodb) provide(ctx context.Context) error {
	dir := filepath.Dir(filepath.Dir(e.python))
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	lock, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil { // another tool may be at it
		return err
	}
	ready := filepath.Join(dir, "ready")
	if _, err := os.Stat(ready); err == nil {
		return nil
	}
	list, err := os.CreateTemp("", "once-dynamodb-*.txt")
	if err != nil {
		return err
	}
	defer os.Remove(list.Name())
	_, err = list.Write(dynamodbPackages)
	if err := errors.Join(err, list.Close(), os.RemoveAll(dir)); err != nil {
		return err
	}
	for _, args := range [][]string{
		{debianPython, "-m", "venv", dir},
		{e.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", list.Name()},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("install the packages of moto: %w\n%s", err, out)
		}
	}
	return os.WriteFile(ready, nil, 0o644)
}

func (*dynamodb) kind() Kind { return DynamoDB }

func (*dynamodb) account() string { return "nobody" }

func (e *dynamodb) prepare(ctx context.Context, h *home) error {
	return errors.Join(e.provide(ctx), h.write("dynamodb.py", dynamodbProgram))
}

func (e *dynamodb) launch(h *home, port int) (*process, error) {
	return h.launch(syscall.SIGKILL, e.python, h.path("dynamodb.py"), e.identity(h), strconv.Itoa(port))
}

// shutdown kills it, because it keeps nothing.
func (*dynamodb) shutdown(p *process) error { return p.cmd.Process.Kill() }

func (*dynamodb) dsn(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// identity is the directory that it was started in.
func (*dynamodb) identity(h *home) string { return h.dir }

func (*dynamodb) askIdentity(ctx context.Context, dsn string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, dsn+"/identity", nil)
	if err != nil {
		return "", err
	}
	text, err := answer(request)
	return string(text), err
}
