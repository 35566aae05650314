//go:build unix

package main

import (
	"crypto/rand"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
)

// until visits a page of a console until it says what it has to.
func until(t *testing.T, at, token, path, text string) (page string) {
	t.Helper()
	for begun := time.Now(); ; {
		status, body := visit(t, at, token, path)
		page = strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(body, " "))), " ")
		if status == http.StatusOK && strings.Contains(page, text) {
			return page
		}
		if time.Since(begun) > testTime/2 {
			t.Fatalf("%s (%d) does not say %q:\n%s", path, status, text, page)
		}
		time.Sleep(50 * time.Millisecond) // the console asks when it has time
	}
}

var tags = regexp.MustCompile(`<[^>]*>`)

// groupWith creates a stream with messages and a group on Redis, and registers its
// consumer.
func groupWith(t *testing.T, shop *target.Target, from string, messages int) (stream string) {
	t.Helper()
	o, err := redis.ParseURL(from)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { client.Close() })
	stream = "cmd-" + strings.ToLower(rand.Text())
	b := redisbroker.New(client, nil)
	if err := b.DeclareGroup(t.Context(), stream, "billing"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Del(t.Context(), stream) })
	for i := range messages {
		if err := b.Publisher().Publish(t.Context(), []*broker.Message{{ID: fmt.Sprint(i), Topic: stream, Body: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	}
	registry := shop.Store.(store.Registry)
	for name, source := range map[string]string{"billing": b.Group(stream, "billing").Name(), "mailing": "pubsub subscription projects/shop/subscriptions/mail", "auditing": "kafka topic orders group audit"} {
		if _, err := registry.Register(t.Context(), store.Consumer{Name: name, Source: source}); err != nil {
			t.Fatal(err)
		}
	}
	return stream
}

// The console asks the brokers that it is given for the lag of the registered
// consumers. Where it is not known, the console says why, and shows no password.
func TestTheConsoleAsksBrokersForTheLag(t *testing.T) {
	broker := testenv.Redis(t)
	from, shop := shopFile(t)
	groupWith(t, shop, broker, 3)
	const password = "hunter2-hunter2"
	locked, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	locked.User = nil
	for _, c := range []struct{ url, says string }{
		{broker, "3 messages, the oldest"},
		{strings.Replace(locked.String(), "://", "://ops:${BROKER_PASSWORD}@", 1), "not known: redisbroker: redis stream"},
	} {
		cmd, _ := command(t, "once", "console", "--url", from, "--listen", "127.0.0.1:0", "--broker", c.url, "--broker", "pubsub://shop")
		cmd.Env = append(cmd.Env, "ONCE_BY=ann", "BROKER_PASSWORD="+password)
		shown := showConsole(t, cmd, nil)
		page := until(t, shown.at, shown.token, "/consumers", c.says)
		for _, text := range []string{"not known: nobody can be asked: its broker does not count", "no address of its broker was given: kafka://"} {
			if !strings.Contains(page, text) {
				t.Errorf("it does not say %q:\n%s", text, page)
			}
		}
		board := until(t, shown.at, shown.token, "/", "Consumer lag")
		if want := map[bool]string{true: "Consumer lag 3+ most for billing", false: "Consumer lag not known 3 not known"}[c.url == broker]; !strings.Contains(board, want) {
			t.Errorf("the overview does not say %q:\n%s", want, board)
		}
		shown.end(os.Interrupt)
		if said := shown.stderr.String(); !strings.Contains(said, "pubsub://shop does not tell") || strings.Contains(said+page+board, password) {
			t.Errorf("it says %s", said)
		}
	}
	cmd, _ := command(t, "once", "console", "--url", from, "--broker", "mqtt://ops:"+password+"@host")
	said, err := cmd.CombinedOutput()
	wantExit(t, err, exitUsage)
	if !strings.Contains(string(said), "it must begin with nats://") || strings.Contains(string(said), password) {
		t.Errorf("it says %s", said)
	}
}

// The console of once serve asks the broker that it publishes to.
func TestTheConsoleOfServeAsksItsBrokerForTheLag(t *testing.T) {
	broker := testenv.Redis(t)
	from, shop := shopFile(t)
	groupWith(t, shop, broker, 2)
	const token = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	s := startService(t, from, "[redis]\nurl = \""+broker+"\"\n[console]\nlisten = \"127.0.0.1:0\"\n[[console.people]]\nname = \"bob\"\nrole = \"look\"\ntoken = \""+token+"\"\n")
	until(t, "http://"+s.console+"/", token, "/consumers", "2 messages, the oldest")
	s.stop()
}
