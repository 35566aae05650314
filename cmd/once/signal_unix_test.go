//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// underWay reads what a demo prints until orders are placed, and processes are killed.
func underWay(t *testing.T, progress io.Reader) {
	t.Helper()
	for said := ""; !strings.Contains(said, " killed, "); {
		more := make([]byte, 1000)
		n, err := progress.Read(more)
		if err != nil {
			t.Fatalf("%v after %q", err, said)
		}
		said += string(more[:n])
	}
}

// The workers inherit stderr, so its end is the end of all of them.
func TestWorkersEndWithTheDemo(t *testing.T) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // else processes inherit that it is ignored, where the tests run under nohup
	defer signal.Stop(hangups)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd, temp := command(t, plainCommand(t), "demo", "--orders", "200")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			progress, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stderr, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer stderr.Close()
			cmd.Stderr = write
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			write.Close()
			underWay(t, progress)
			to := cmd.Process.Pid
			if signal == syscall.SIGINT || signal == syscall.SIGHUP { // a terminal sends it to the workers too
				to = -to
			}
			if err := syscall.Kill(to, signal); err != nil {
				t.Fatal(err)
			}
			stderr.SetReadDeadline(time.Now().Add(testTime))
			last, err := io.ReadAll(stderr)
			if err != nil {
				t.Fatalf("workers live on: %v", err)
			}
			io.Copy(io.Discard, progress)
			err = cmd.Wait()
			if signal == syscall.SIGKILL {
				return // it could not say or remove anything
			}
			wantExit(t, err, exitFailed)
			if got := string(last); got != "once: interrupted\n" {
				t.Errorf("stderr says %q", got)
			}
			wantEmpty(t, temp)
		})
	}
}

// What is kept is named, whatever ends the demo.
func TestKeptWhenInterrupted(t *testing.T) {
	cmd, temp := command(t, plainCommand(t), "demo", "--orders", "40", "--keep")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	progress, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	underWay(t, progress)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, progress)
	wantExit(t, cmd.Wait(), exitFailed)
	kept, err := filepath.Glob(filepath.Join(temp, "once-demo-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept: %q, %v", kept, err)
	}
	if got := stderr.String(); got != "Kept: "+kept[0]+"\nonce: interrupted\n" {
		t.Errorf("stderr says %q", got)
	}
}

// As by once demo | head -1.
func TestDemoEndsWithItsReader(t *testing.T) {
	cmd, temp := command(t, plainCommand(t), "demo", "--orders", "40")
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	output.Close()
	wantExit(t, cmd.Wait(), exitFailed)
	wantEmpty(t, temp)
}

// A run that is interrupted while it writes leaves no table, and no key that stays.
func TestBenchClearsUpWhenInterrupted(t *testing.T) {
	from := "sqlite:" + filepath.ToSlash(t.TempDir()) + "/shop.db"
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	at := open(t, from)
	cmd, _ := command(t, "once", "bench", "--yes", "--seconds", "60", "--workers", "3", "--url", from)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	keys := 0
	for begun := time.Now(); keys == 0; {
		if time.Since(begun) > testTime {
			t.Fatal("it makes no keys")
		}
		// Its transactions may lock readers out for longer than they wait: then the next look sees more.
		_ = at.Tables.DB.QueryRow("SELECT count(*) FROM once_record WHERE operation = 'once-bench'").Scan(&keys)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	wantExit(t, cmd.Wait(), exitFailed)
	said := stderr.String()
	if !strings.HasSuffix(said, "\nonce: interrupted\n") || !strings.Contains(said, " keys of once-bench are left.") {
		t.Errorf("stderr says %q", said)
	}
	wantNoTrace(t, at)
}
