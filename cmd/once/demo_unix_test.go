//go:build unix

package main

import (
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
	c := showConsole(t, cmd, regexp.MustCompile(`http://\S+/orders/order-1`))
	if strings.Contains(c.at, c.token) {
		t.Fatalf("the console is at %q, with the token %q", c.at, c.token)
	}
	until(t, c.at, c.token, "/key?store=shop&operation=refund&id=order-1", "It did not happen, and no longer can")
	until(t, c.at, c.token, "/", "Consumer lag")
	if page := until(t, c.at, c.token, "/consumers?store=shop", "its broker still has for it. Asked"); strings.Contains(page, "nobody can be asked") {
		t.Errorf("the lag is not known:\n%s", page)
	}
	untilRefunded(t, c.found)
	if rest := c.end(os.Interrupt); !strings.Contains(rest, "With once: ") || c.stderr.Len() > 0 {
		t.Errorf("it ends with %s%s", rest, c.stderr.String())
	}
	wantEmpty(t, temp)
}

// untilRefunded waits until the provider has one charge and one refund of the first
// order. The refund does not wait for the charge, which comes by a message.
func untilRefunded(t *testing.T, url string) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		text := string(body)
		if err == nil && strings.Count(text, `"ID": "ch_order-1_`) == 1 && strings.Contains(text, `"Refunds": 1`) {
			return
		}
		if err != nil || time.Since(begun) > testTime/2 {
			t.Fatalf("the provider says %s, %v", text, err)
		}
	}
}
