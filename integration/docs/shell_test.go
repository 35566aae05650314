//go:build linux

package docs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// longest limits a command. It is long because a machine without a build cache
// takes minutes.
const longest = 5 * time.Minute

const ctrlC = "\x03"

// shell is a bash that runs one command after another at a terminal that
// confirms every question.
type shell struct {
	cmd      *exec.Cmd
	script   io.Writer
	statuses chan string // one for each command that has ended; closed when bash has
	said     *os.File    // by all commands
	keyboard *bufio.Reader
	terminal *os.File // what the commands read from
	master   *os.File
}

// newShell starts a bash in a directory.
func newShell(t *testing.T, dir string, env []string) *shell {
	t.Helper()
	s := &shell{statuses: make(chan string)}
	s.openTerminal(t)
	said, err := os.OpenFile(filepath.Join(t.TempDir(), "said"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	must(t, err)
	s.said = said
	scriptRead, scriptWrite, err := os.Pipe()
	must(t, err)
	statusRead, statusWrite, err := os.Pipe()
	must(t, err)
	s.script = scriptWrite
	s.cmd = exec.Command("bash", "--norc", "--noprofile", "-o", "pipefail", "/dev/fd/3")
	s.cmd.Dir, s.cmd.Env = dir, env
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.terminal, said, said
	s.cmd.ExtraFiles = []*os.File{scriptRead, statusWrite}
	// What it starts ends with this process, when the other end of the terminal is closed.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, s.cmd.Start())
	_, _ = scriptRead.Close(), statusWrite.Close()
	_, err = io.WriteString(s.script, "trap : INT\n") // it goes on after a command that Ctrl-C has ended
	must(t, err)
	go func() {
		defer close(s.statuses)
		for lines := bufio.NewScanner(statusRead); lines.Scan(); {
			s.statuses <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it leads its group, and nobody has waited for it yet
		_ = s.cmd.Wait()
		_ = statusRead.Close()
		for range s.statuses { // it ends
		}
		_, _ = scriptWrite.Close(), said.Close()
		_, _ = s.terminal.Close(), s.master.Close()
	})
	return s
}

func (s *shell) openTerminal(t *testing.T) {
	t.Helper()
	var err error
	s.master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(s.master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(s.master.Fd()), unix.TIOCGPTN)
	must(t, err)
	s.terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	s.keyboard = bufio.NewReader(s.master)
}

// run runs a command and returns its exit status and output. With until, the
// command must run until it is interrupted, which happens as soon as until
// returns no error. It is an error if the command ends earlier.
func (s *shell) run(t *testing.T, text string, until func(said string) error) (status int, said string, err error) {
	t.Helper()
	from, err := s.said.Seek(0, io.SeekEnd)
	must(t, err)
	_, err = s.master.WriteString("y\n")
	must(t, err)
	_, err = s.keyboard.ReadString('\n') // its echo: the terminal has it
	must(t, err)
	_, err = fmt.Fprintf(s.script, "%s\necho $? >&4\n", text)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case line, open := <-s.statuses:
			said = s.since(t, from)
			if !open {
				t.Fatalf("%s\nends the shell, and says\n%s", text, said)
			}
			must(t, unix.IoctlSetInt(int(s.terminal.Fd()), unix.TCFLSH, unix.TCIFLUSH)) // what nobody has read
			status, err = strconv.Atoi(line)
			must(t, err)
			if until != nil {
				err = fmt.Errorf("has ended by itself, with %d, and says\n%s", status, said)
			}
			return status, said, err
		case <-look.C:
			if until != nil && until(s.since(t, from)) == nil {
				_, err := s.master.WriteString(ctrlC)
				must(t, err)
				until = nil
			}
		case <-ctx.Done():
			t.Fatalf("%s\ndoes not end, and says\n%s", text, s.since(t, from))
		}
	}
}

func (s *shell) since(t *testing.T, from int64) string {
	t.Helper()
	text, err := io.ReadAll(io.NewSectionReader(s.said, from, 1<<20))
	must(t, err)
	return string(text)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestShell(t *testing.T) {
	s := newShell(t, t.TempDir(), append(os.Environ(), "HERE=1"))
	for _, c := range []struct {
		text, said string
		status     int
	}{
		{"echo $HERE; echo b >&2", "1\nb\n", 0},
		{"mkdir d && cd d", "", 0},
		{"basename $PWD # a comment", "d\n", 0},
		{"(exit 7)", "", 7},
		{"[ -t 0 ] && read answer && echo $answer", "y\n", 0},
		{"true", "", 0},
		{"read answer && echo $answer", "y\n", 0},
		{"sh -c 'echo a\n\techo b; false'", "a\nb\n", 1},
		{"source <(echo 'f() { echo of f; }')", "", 0},
		{"f", "of f\n", 0},
		{"false | true", "", 1},
	} {
		if status, said, _ := s.run(t, c.text, nil); status != c.status || said != c.said {
			t.Errorf("%s: %d, %q, want %d, %q", c.text, status, said, c.status, c.said)
		}
	}
	status, said, err := s.run(t, `sh -c 'trap "echo stopped; exit 3" INT; echo begun; while :; do sleep 0.01; done'`, func(said string) error {
		if !strings.Contains(said, "begun") {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	if err != nil || status != 3 || !strings.Contains(said, "stopped") {
		t.Errorf("interrupted: %d, %q, %v", status, said, err)
	}
	status, _, err = s.run(t, "sleep 600", func(string) error { return nil })
	if want := 128 + int(syscall.SIGINT); err != nil || status != want {
		t.Errorf("interrupted: %d, %v, want %d", status, err, want)
	}
	if _, _, err := s.run(t, "true", func(string) error { return io.EOF }); err == nil {
		t.Error("a service that has ended by itself is taken for right")
	}
	if status, said, _ := s.run(t, "read answer && echo $answer", nil); status != 0 || said != "y\n" {
		t.Errorf("after that: %d, %q", status, said)
	}
}
