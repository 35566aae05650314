package httpclients_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

// directory is the environment variable that makes a copy of the test the
// server. Its value is the directory of its files.
const directory = "ONCE_HTTP_SERVER_DIRECTORY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(directory); dir != "" {
		fmt.Fprintln(os.Stderr, serve(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const (
	lease   = 400 * time.Millisecond
	dieHere = "Die" // the header that says where the server kills itself
)

func die(r *http.Request, place string) {
	if r.Header.Get(dieHere) == place {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// serve is the server. Its effect is in a file. It has both forms of the guard,
// with each policy for unknown outcomes.
func serve(dir string) error {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	if err := store.Migrate(context.Background()); err != nil {
		return err
	}
	if _, err := db.Exec("CREATE TABLE IF NOT EXISTS effects (name TEXT)"); err != nil {
		return err
	}
	file := filepath.Join(dir, "effects")
	outside := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		die(r, "before")
		claim, _ := once.ClaimFrom(r.Context())
		if err := appendLine(file, claim.Key.ID); err != nil {
			w.WriteHeader(500)
			return
		}
		die(r, "during")
		fmt.Fprint(w, "done")
	})
	inside := func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		die(r, "before")
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO effects VALUES ('x')"); err != nil {
			return err
		}
		die(r, "during")
		fmt.Fprint(w, "done")
		return nil
	}
	lookup := func(_ context.Context, key once.Key) (*httponce.Response, bool, error) {
		lines, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, false, err
		}
		return &httponce.Response{Status: 200, Body: []byte("done")}, strings.Contains(string(lines), key.ID+"\n"), nil
	}
	policy := once.Policy{Lease: lease, Wait: once.NoWait}
	mux := http.NewServeMux()
	mux.Handle("/park", httponce.Handler(store, account, outside, &httponce.Options{Policy: policy}))
	mux.Handle("/resend", httponce.Handler(store, account, outside, &httponce.Options{Policy: policy, OnUnknown: once.Resend}))
	mux.Handle("/lookup", httponce.Handler(store, account, outside, &httponce.Options{Policy: policy, Lookup: lookup}))
	mux.Handle("/tx", httponce.HandlerTx(store, account, inside, &httponce.Options{Policy: policy}))
	mux.HandleFunc("/effects", func(w http.ResponseWriter, r *http.Request) {
		var rows int
		_ = db.QueryRowContext(r.Context(), "SELECT count(*) FROM effects").Scan(&rows)
		lines, _ := os.ReadFile(file)
		fmt.Fprint(w, rows+strings.Count(string(lines), "\n"))
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r)
		die(r, "after") // it is recorded, and the response is in a buffer
	}))
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Sync(), f.Close())
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start starts a server, and returns its address.
func start(t *testing.T, dir string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = append(os.Environ(), directory+"="+dir), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server does not start: %v", err)
	}
	return "http://" + strings.TrimSpace(line)
}

// ask returns the status and the body of a response, and 0 if there is none.
func ask(t *testing.T, url, place string) (status int, body string, replayed bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("amount=1"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{httponce.KeyHeader: {"key-1"}, "Authorization": {"Bearer a"}, dieHere: {place}}
	r.GetBody = nil // so that the transport cannot send it again by itself
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, "", false
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), resp.Header.Get(httponce.ReplayedHeader) == "true"
}

// TestKilled kills the server in the handler, before and after its effect, and
// after its response is recorded and before it is sent.
func TestKilled(t *testing.T) {
	for _, test := range []struct {
		route, place string
		status       int // of the repeat, when the lease has lapsed
		replayed     bool
		effects      string
	}{
		{"/park", "before", 409, false, "0"},
		{"/park", "during", 409, false, "1"},
		{"/park", "after", 200, true, "1"},
		{"/resend", "before", 200, false, "1"},
		{"/resend", "during", 200, false, "2"}, // which is what Resend means
		{"/resend", "after", 200, true, "1"},
		{"/lookup", "before", 200, false, "1"},
		{"/lookup", "during", 200, true, "1"},
		{"/lookup", "after", 200, true, "1"},
		{"/tx", "before", 200, false, "1"},
		{"/tx", "during", 200, false, "1"},
		{"/tx", "after", 200, true, "1"},
	} {
		t.Run(strings.Trim(test.route, "/")+" "+test.place, func(t *testing.T) {
			dir := t.TempDir()
			if status, _, _ := ask(t, start(t, dir)+test.route, test.place); status != 0 {
				t.Fatalf("the server that was to be killed has answered %d", status)
			}
			url := start(t, dir)
			status, body, replayed := ask(t, url+test.route, "")
			tick := time.NewTicker(lease / 20)
			defer tick.Stop()
			for end := time.Now().Add(testenv.Patience); strings.Contains(body, "#in-progress") && time.Now().Before(end); {
				<-tick.C // the lease of the dead has to lapse
				status, body, replayed = ask(t, url+test.route, "")
			}
			if status != test.status || replayed != test.replayed || status == 200 && body != "done" || status == 409 && !strings.Contains(body, "#outcome-unknown") {
				t.Errorf("the repeat got %d, replayed %v: %s", status, replayed, body)
			}
			if again, _, _ := ask(t, url+test.route, ""); again != test.status {
				t.Errorf("and then %d", again)
			}
			if _, effects, _ := ask(t, url+"/effects", ""); effects != test.effects {
				t.Errorf("%s effects, want %s", effects, test.effects)
			}
		})
	}
}
