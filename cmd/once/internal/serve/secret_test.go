package serve

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/secret/secrettest"
)

// What is wrong in one place of a configuration never shows the secrets in another.
func TestBrokenConfigurationShowsNoSecret(t *testing.T) {
	url, _ := shop(t)
	file := filepath.Join(t.TempDir(), "once.toml")
	ends, cancel := context.WithCancel(t.Context())
	cancel()
	for _, text := range []string{
		"url = \"postgres://u:" + secrettest.Secret + "@127.0.0.1:1/d?sslmode=disable\"\n[rabbitmq]\nurl = \"amqp://127.0.0.1:1\"\n",
		"[rabbitmq]\nurl = \"amqp://u:" + secrettest.Secret + "@127.0.0.1:1/v\"\n",
		"[nats]\nurl = \"nats://u:" + secrettest.Secret + "@127.0.0.1:1\"\n",
		"[eventgrid]\nsource = \"/shop\"\nendpoint = \"https://127.0.0.1:1/api/events\"\nkey = \"" + strings.Repeat(secrettest.Secret, 4) + "\"\n",
		"[eventhubs]\nconnection = \"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=" + secrettest.Secret + "\"\n",
		"[webhook]\nsource = \"/shop\"\n[webhook.default]\nurl = \"https://127.0.0.1:1/\"\nsecrets = [\"whsec_" + secrettest.Secret + "\"]\n",
	} {
		secrettest.Broken(t, text, func(broken string) string {
			if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, secrets := secret.With(ends)
			c, err := Load(ctx, file)
			if err == nil {
				if c.URL == "" {
					c.URL = url
				}
				c.Listen = "127.0.0.1:0"
				var log bytes.Buffer
				err = Run(ctx, c, slog.New(slog.NewJSONHandler(secrets.Writer(&log), nil)))
				return log.String() + secrettest.Said(ctx, err)
			}
			return secrettest.Said(t.Context(), err)
		})
	}
}

// The client of Service Bus parses a connection string for itself, and quotes it in
// its own errors.
func TestBrokenConnectionShowsNoSecret(t *testing.T) {
	secrettest.Broken(t, "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey="+secrettest.Secret+";UseDevelopmentEmulator=true", func(broken string) string {
		ctx, secrets := secret.With(t.Context())
		p, err := (&Config{ServiceBus: &ServiceBus{Connection: broken}}).publisher(secrets)
		if err == nil {
			err = p.Close()
		}
		return secrettest.Said(ctx, err)
	})
}

type refusing struct{ broker.Publisher }

func (refusing) Publish(context.Context, []*broker.Message) []error {
	return []error{nil, errors.New(`Post "https://u:hunter2@partner.example/?key=a%2Fb%22c": dial tcp: refused a/b"c`)}
}

// What a relay writes down with a message that failed is read by people.
func TestPublisherErrorsShowNoSecret(t *testing.T) {
	_, secrets := secret.With(t.Context())
	secrets.AddURL("https://partner.example/?key=a%2Fb%22c")
	errs := discreet{refusing{}, secrets}.Publish(t.Context(), nil)
	if errs[0] != nil || errs[1] == nil {
		t.Fatal(errs)
	}
	for _, part := range []string{"hunter2", "a%2Fb", "a/b"} {
		if strings.Contains(errs[1].Error(), part) {
			t.Errorf("%s is in %v", part, errs[1])
		}
	}
}
