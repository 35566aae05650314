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
	"path/filepath"
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

// consoleOf reads where a console is, and its token.
func consoleOf(t *testing.T, stdout io.Reader) (at, token string) {
	t.Helper()
	for lines := bufio.NewScanner(stdout); token == "" && lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); name {
		case "Console":
			at = value
		case "Token":
			token = value
		}
	}
	return at, token
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
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		at, token := consoleOf(t, stdout)
		if status, _ := visit(t, at, "another-token-of-24-bytes", "/"); status != http.StatusForbidden {
			t.Errorf("another token lets in: %d", status)
		}
		status, page := visit(t, at, token, "/audit")
		role := "look"
		if write {
			role = "administer"
		}
		if status != http.StatusOK || !strings.Contains(page, "ann") || !strings.Contains(page, role) || strings.Contains(page, "read-only") == write {
			t.Errorf("write %v: %d %s", write, status, page)
		}
		if err := cmd.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, stdout)
		wantExit(t, cmd.Wait(), exitOK)
		if said := stderr.String(); strings.Contains(said, token) || strings.Contains(at, token) || strings.Contains(page, token) {
			t.Errorf("the token is in %s, %s, or %s", said, at, page)
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
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at, token := consoleOf(t, stdout)
	if status, page := visit(t, at, token, "/key?operation=pay%2Fcharge&id=order-4711"); status != http.StatusOK || !strings.Contains(page, "Ask now") {
		t.Errorf("%d %s", status, page)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stdout)
	wantExit(t, cmd.Wait(), exitOK)
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
