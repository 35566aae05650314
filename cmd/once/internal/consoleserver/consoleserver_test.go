package consoleserver

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/secret/secrettest"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/store/memstore"
)

var words = Words{Listen: "--listen", Hosts: "--host", People: "--people", Proxy: "--proxy-header", Trace: "--trace"}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func stores() []console.Store {
	return []console.Store{{Name: "shop", Store: memstore.New(nil)}}
}

// What is wrong in a file of people never shows a token in it.
func TestBrokenPeopleShowNoToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "people.toml")
	secrettest.Broken(t, "[[people]]\nname = \"ann\"\nrole = \"look\"\ntoken = \""+secrettest.Secret+"\"\n", func(broken string) string {
		if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, _ := secret.With(t.Context())
		people, err := Load(ctx, file)
		if err == nil {
			var s *Server
			if s, err = New(ctx, Config{Listen: "127.0.0.1:0", People: people.People}, stores(), nil, quiet(), words); err == nil {
				s.Close()
			}
		}
		return secrettest.Said(ctx, err)
	})
}

func TestAnswersToTheHostsThatItIsToldOf(t *testing.T) {
	for _, test := range []struct {
		listen string
		hosts  []string
		want   string // or the error
	}{
		{"127.0.0.1:9470", nil, "localhost 127.0.0.1 ::1"},
		{"10.0.0.5:9470", nil, "localhost 127.0.0.1 ::1 10.0.0.5"},
		{"[::]:9470", []string{"ops.example"}, "localhost 127.0.0.1 ::1 ops.example"},
		{":9470", nil, "add --host"},
		{"0.0.0.0:9470", nil, "add --host"},
		{"9470", nil, "give a host and a port"},
	} {
		all, err := (&Config{Listen: test.listen, Hosts: test.hosts}).hosts(words)
		got := strings.Join(all, " ")
		if err != nil {
			got = err.Error()
		}
		if got != test.want && (err == nil || !strings.Contains(got, test.want)) {
			t.Errorf("%s: %s, want %s", test.listen, got, test.want)
		}
	}
}

func TestLoopbackIsOfThisMachineOnly(t *testing.T) {
	for listen, want := range map[string]bool{"": true, "127.0.0.1:1": true, "127.1.2.3:1": true, "localhost:1": true, "[::1]:1": true,
		"[::ffff:127.0.0.1]:1": true, ":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.5:1": false, "ops.example:1": false, "1": false} {
		if got := Loopback(listen); got != want {
			t.Errorf("%q: %v", listen, got)
		}
	}
}

// A request that never ends does not keep the process from ending.
func TestEndsWhileARequestIsUnderWay(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	s, err := New(ctx, Config{Listen: "127.0.0.1:0", People: []Person{{Name: "ann", Role: "look", Token: strings.Repeat("x", 20)}}}, stores(), nil, quiet(), words)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar}
	r, err := client.PostForm(s.URL()+"sign-in", url.Values{"token": {strings.Repeat("x", 20)}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	events, err := client.Get(s.URL() + "events?of=overview")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	if kind := events.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Errorf("live updates have the type %q", kind)
	}
	slow, err := net.Dial("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, "POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	stop()
	if rest, err := io.ReadAll(events.Body); err != nil || !strings.Contains(string(rest), "event: part") { // cut off otherwise
		t.Errorf("live updates end with %v after %d bytes", err, len(rest))
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}

func TestReportsHaveNames(t *testing.T) {
	ctx, secrets := secret.With(t.Context())
	c := Config{Listen: "127.0.0.1:0", Reports: map[string]string{"refunds": "/r.csv", "charges": "/c.csv"}, People: []Person{{Name: "ann", Role: "look", Token: strings.Repeat("x", 20)}}}
	o, err := c.options(secrets, words)
	if want := []console.Report{{Name: "charges", File: "/c.csv"}, {Name: "refunds", File: "/r.csv"}}; err != nil || !slices.Equal(o.Reports, want) {
		t.Errorf("%v, %v", o.Reports, err)
	}
	c.Reports = map[string]string{"../x": "/r.csv"}
	if s, err := New(ctx, c, stores(), nil, quiet(), words); err == nil || !strings.Contains(err.Error(), "the name of a report") {
		if s != nil {
			s.Close()
		}
		t.Error(err)
	}
}
