package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// A demo starts and kills hundreds of processes. With the race detector each takes twelve times the processor, so demos
// that show what it does run as users have it. Those of broken sides, and the script json, keep the detector.

// plainDir is the directory of the command as users build it, to be put first into a PATH. It is made when it is first
// asked for.
var plainDir = sync.OnceValues(func() (dir string, err error) {
	if plainTemp, err = os.MkdirTemp("", "once-plain-"); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(plainTemp, plainName()), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	return plainTemp, build.Run()
})

var plainTemp string // to be removed

func plainName() string {
	if runtime.GOOS == "windows" {
		return "once.exe"
	}
	return "once"
}

// plainCommand is the path of the plain command.
func plainCommand(t *testing.T) string {
	t.Helper()
	dir, err := plainDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, plainName())
}

// tidy removes the plain command when all tests have run.
type tidy struct{ *testing.M }

func (m tidy) Run() int {
	defer func() { _ = os.RemoveAll(plainTemp) }()
	return m.M.Run()
}
