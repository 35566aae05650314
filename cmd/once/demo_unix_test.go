//go:build unix

package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The demo with a console runs until Ctrl-C. Its console has what the terminal tells
// people to look for, and in the end the shop is right.
func TestDemoShowsTheConsoleUntilInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("demos take long: run it without -short")
	}
	cmd, temp := command(t, plainCommand(t), "demo", "--console")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var at, token, provider string
	page := regexp.MustCompile(`http://\S+/orders/order-1`)
	for lines := bufio.NewScanner(stdout); provider == "" && lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); name {
		case "Console":
			at = value
		case "Token":
			token = value
		}
		provider = page.FindString(lines.Text())
	}
	if token == "" || strings.Contains(at, token) {
		t.Fatalf("the console is at %q, with the token %q", at, token)
	}
	seen := false
	for until := time.Now().Add(testTime / 2); !seen && time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		status, found := visit(t, at, token, "/key?store=shop&operation=refund&id=order-1")
		seen = status == http.StatusOK && strings.Contains(found, "It did not happen, and no longer can")
	}
	if !seen {
		t.Error("the refund of order-1 does not become unknown")
	}
	r, err := http.Get(provider)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if text, err := io.ReadAll(r.Body); err != nil || strings.Count(string(text), `"ID": "ch_order-1_`) != 1 || !strings.Contains(string(text), `"Refunds": 1`) {
		t.Errorf("the provider says %s, %v", text, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	wantExit(t, cmd.Wait(), exitOK)
	if !strings.Contains(string(rest), "With once: ") || stderr.Len() > 0 {
		t.Errorf("it ends with %s%s", rest, stderr.String())
	}
	wantEmpty(t, temp)
}
