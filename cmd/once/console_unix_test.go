//go:build unix

package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
)

// visit returns a page of a console as somebody sees it who signs in with a token.
func visit(t *testing.T, at, token, path string) (status int, page string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar, Timeout: testTime}
	r, err := client.PostForm(at+"sign-in", url.Values{"token": {token}, "next": {path}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// shownConsole is a console that a command serves.
type shownConsole struct {
	t         *testing.T
	cmd       *exec.Cmd
	stdout    io.Reader
	stderr    bytes.Buffer
	at, token string
	found     string // what was searched for in the output
}

// showConsole starts a command and reads where its console is, its token, and what
// is found in a line, unless that is nil.
func showConsole(t *testing.T, cmd *exec.Cmd, find *regexp.Regexp) *shownConsole {
	t.Helper()
	c := &shownConsole{t: t, cmd: cmd}
	cmd.Stderr = &c.stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdout = stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); (c.token == "" || find != nil && c.found == "") && lines.Scan(); {
		if find != nil && c.found == "" {
			c.found = find.FindString(lines.Text())
		}
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); name {
		case "Console":
			c.at = value
		case "Token":
			c.token = value
		}
	}
	if c.token == "" {
		t.Fatalf("it shows no console: %v: %s", cmd.Wait(), c.stderr.String())
	}
	return c
}

// end ends the command, which must end well, and returns what it still said.
func (c *shownConsole) end(signal os.Signal) string {
	c.t.Helper()
	if err := c.cmd.Process.Signal(signal); err != nil {
		c.t.Fatal(err)
	}
	rest, err := io.ReadAll(c.stdout)
	if err != nil {
		c.t.Fatal(err)
	}
	wantExit(c.t, c.cmd.Wait(), exitOK)
	return string(rest)
}

// One token is made for each run, whoever has it may look, and it is in no log.
func TestConsoleRunsUntilInterrupted(t *testing.T) {
	from, _ := shopFile(t)
	for _, write := range []bool{false, true} {
		cmd, _ := command(t, "once", "console", "--url", from, "--listen", "127.0.0.1:0")
		cmd.Env = append(cmd.Env, "ONCE_BY=ann")
		end := os.Interrupt
		if write {
			cmd.Args, end = append(cmd.Args, "--write"), syscall.SIGTERM
		}
		c := showConsole(t, cmd, nil)
		if status, _ := visit(t, c.at, "another-token-of-24-bytes", "/"); status != http.StatusForbidden {
			t.Errorf("another token lets in: %d", status)
		}
		status, page := visit(t, c.at, c.token, "/audit")
		role := "look"
		if write {
			role = "administer"
		}
		if status != http.StatusOK || !strings.Contains(page, "ann") || !strings.Contains(page, role) || strings.Contains(page, "read-only") == write {
			t.Errorf("write %v: %d %s", write, status, page)
		}
		c.end(end)
		if said := c.stderr.String(); strings.Contains(said, c.token) || strings.Contains(c.at, c.token) || strings.Contains(page, c.token) {
			t.Errorf("the token is in %s, %s, or %s", said, c.at, page)
		}
	}
}

// With the file of once serve, people can ask its URLs, as once unknown ask does.
func TestConsoleAsksTheURLsOfAFile(t *testing.T) {
	from, shop := shopFile(t)
	k := once.Key{Operation: "pay/charge", ID: "order-4711"}
	rec, err := shop.Store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k, Owner: [16]byte{1}}, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := shop.Store.Settle(t.Context(), once.Settlement{Fence: once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Unknown}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "once.toml")
	if err := os.WriteFile(file, []byte("url = \""+from+"\"\n[[reconcile.operation]]\nname = \"charge\"\nask = \"https://shop.example/once\"\nsettle = \"0s\"\n"+
		"secrets = [\"whsec_"+strings.Repeat("c2VjcmV0", 4)+"\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, _ := command(t, "once", "console", "--config", file, "--listen", "127.0.0.1:0", "--write")
	cmd.Env = append(cmd.Env, "ONCE_BY=ann")
	c := showConsole(t, cmd, nil)
	if status, page := visit(t, c.at, c.token, "/key?operation=pay%2Fcharge&id=order-4711"); status != http.StatusOK || !strings.Contains(page, "Ask now") {
		t.Errorf("%d %s", status, page)
	}
	c.end(os.Interrupt)
}

// The console of once serve is for the people in its configuration.
func TestServeServesTheConsole(t *testing.T) {
	from, _ := shopFile(t)
	const token = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	s := startService(t, from, "[janitor]\n[console]\nlisten = \"127.0.0.1:0\"\n[[console.people]]\nname = \"bob\"\nrole = \"decide\"\ntoken = \""+token+"\"\n")
	if s.console == "" {
		t.Fatal("the log does not say where the console is")
	}
	if status, page := visit(t, "http://"+s.console+"/", token, "/"); status != http.StatusOK || !strings.Contains(page, "bob") {
		t.Errorf("%d %s", status, page)
	}
	s.stop()

	file := filepath.Join(t.TempDir(), "once.toml")
	if err := os.WriteFile(file, []byte("[janitor]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, _ := command(t, "once", "serve", "--config", file, "--url", from, "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")
	said, err := cmd.CombinedOutput()
	wantExit(t, err, exitUsage)
	if !strings.Contains(string(said), "nobody could use the console: add [[console.people]]") {
		t.Errorf("it says %s", said)
	}
}
