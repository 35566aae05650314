package serve

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/janitor"
)

const hooks = `
[webhook]
source = "/shop"
[webhook.topics.paid]
url = "https://partner.example/hooks"
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
`

const (
	operation = "[[reconcile.operation]]\nname = \"charge\"\n"
	asks      = operation + `ask = "https://partner.example/hunter2"
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
`
	settled = "settle = \"1m\"\n"
)

// run serves what a file says, and returns what is wrong with it.
func run(t *testing.T, url, text string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "once.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(t.Context(), file)
	if err != nil {
		return err
	}
	c.URL, c.Listen = url, "127.0.0.1:0"
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // what is wrong shows before anything runs
	defer cancel()
	return Run(ctx, c, slog.New(slog.DiscardHandler))
}

// shop makes a database without tables.
func shop(t *testing.T) (url string, at *target.Target) {
	t.Helper()
	url = "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	at, err := target.Open(t.Context(), url, &target.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Close() })
	if err := at.Tables.DB.PingContext(t.Context()); err != nil { // which makes the file
		t.Fatal(err)
	}
	return url, at
}

// goName is a name of a field, or the prefix of a package: who writes the file knows neither.
var goName = regexp.MustCompile(`\b([a-z]*[A-Z][a-z]+[A-Z]\w*|Batch|Lease|Share|Every|Poll|Name|Source|Timeout|once: invalid\w*|broker: invalid)\b`)

var paths = regexp.MustCompile(`\S*/once\.toml`)

func TestMistakesAreRefused(t *testing.T) {
	url, at := shop(t)
	if err := at.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"stop = 20\n[janitor]":                                     "with its unit",
		"[janitor]\nevery = 60":                                    "with its unit",
		"[janitor]\nshare = 5.0":                                   "janitor.share",
		"[janitor]\nevry = \"1m\"":                                 "janitor.evry",
		"stop = \"-1s\"\n[janitor]":                                "negative",
		"[reconcile]\npark = [\"pay/mail\"]":                       "no slash",
		"[reconcile]\npark = [\"\"]":                               "no name",
		"[reconcile]\nevery = \"1m\"\n[janitor]":                   "nothing to reconcile",
		asks:                                                       "reconcile.operation charge: settle is missing",
		asks + "settle = \"-1s\"":                                  "must not be negative",
		asks + "settle = 5":                                        "with its unit",
		asks + "policy = \"park\"":                                 "cannot be used together",
		asks + "sttle = \"1s\"":                                    "reconcile.operation.sttle",
		asks + settled + "key_valid_for = \"-1s\"":                 "must not be negative",
		asks + settled + "keep_outcome = \"-1s\"":                  "keep_outcome",
		asks + settled + "per_second = -1.0":                       "per_second",
		asks + settled + "at_once = -1":                            "at_once",
		asks + settled + asks + settled:                            "ask is given twice",
		"[reconcile]\npark = [\"mail\"]\nallow = [\"10.0.0.0/8\"]": "no [[reconcile.operation]] has an ask",
		"[reconcile]\npark = [\"mail\"]\ntimeout = \"1s\"":         "no [[reconcile.operation]] has an ask",
		asks + settled + "[[reconcile.operation]]\nname = \"charge\"\npolicy = \"park\"": "there twice",
		"[reconcile]\ntimeout = \"-1s\"\npark = [\"mail\"]":                              "reconcile.timeout",
		operation + "ask = \"http://partner.example/hunter2\"\n" + settled:               "not https",
		operation + "ask = \"https://partner.example/hunter2\"\n" + settled:              "no secret",
		operation + "ask = \"https://u:hunter2@partner.example/\"\n" + settled:           "a user",
		operation + "ask = \"${NOT_SET}\"\n" + settled:                                   "reconcile.operation charge: ask: the variable NOT_SET",
		operation: "ask is missing: give a URL or a policy",
		operation + "policy = \"park\"\nkey_valid_for = \"1h\"":                       "key_valid_for applies to ask and resend",
		operation + "policy = \"ask\"":                                                "use park or resend",
		operation + "policy = \"resend\"\n" + settled:                                 "keep_key need it",
		"[relay]\nbatch = 5\n[janitor]":                                               "nothing to publish to",
		hooks + "timeout = \"5s\"":                                                    "timeout",
		hooks + "[relay]\nbatch = -1":                                                 "relay.batch",
		hooks + "[relay]\nlease = \"5ms\"":                                            "relay.lease",
		hooks + "[relay]\npoll = \"-5s\"":                                             "relay.poll",
		hooks + "[relay.retry]\nattempts = -1":                                        "relay.retry",
		"[janitor]\nevery = \"-60s\"":                                                 "janitor.every",
		"[janitor]\nkeep_shelved = \"-60s\"":                                          "janitor.keep_shelved",
		strings.Replace(hooks, "/shop", "", 1):                                        "webhook.source",
		strings.Replace(hooks, "\n[webhook.t", "\nconcurrent = -1\n[webhook.t", 1):    "webhook.concurrent",
		hooks + "[relay]\nthen = \"forget\"":                                          "relay.then",
		hooks + "[relay]\nkeep_for = \"1h\"":                                          "relay.keep_for",
		hooks + "[webhook.default]\nsecrets = [\"\"]":                                 "no valid URL",
		hooks + "[nats]\nurl = \"nats://h\"":                                          "only one",
		"[nats]":                                                                      "nats.url",
		"[nats]\nurl = \"nats://u:hunter2@h:x\"":                                      "nats.url",
		"[rabbitmq]\nexchange = \"orders\"":                                           "rabbitmq.url",
		hooks + "[eventgrid]\nendpoint = \"https://h\"":                               "only one",
		"[eventgrid]\nkey = \"hunter2\"":                                              "eventgrid.source",
		"[eventgrid]\nsource = \"/shop\"\nkey = \"hunter2\"":                          "no valid URL",
		"[eventgrid]\nsource = \"/shop\"\nkey = \"${NOT_SET}\"":                       "eventgrid.key",
		"[eventgrid]\nsource = \"/shop\"\nkey = \"hunter2\"\nendpoint = \"http://h\"": "eventgrid.allow_http",
		"[eventgrid]\nsource = \"/shop\"\nkey = \"hunter2\"\nendpoint = \"https://h\"\ntimeout = \"-1s\"": "eventgrid.timeout",
		"[rabbitmq]\nurl = \"amqp://u:hunter2@h:x\"":                                                      "rabbitmq.url",
		"[redis]": "redis.url",
		"[sqs]\nregion = \"eu-north-1\"\ntopics = \"orders\"": "sqs.topics",
		"[sqs]\nurl = \"https://h\"":                          "sqs.url",
		"[redis]\nurl = \"redis://u:hunter2@h:x\"":            "redis.url",
		"[redis]\nurl = \"redis://h\"\nreplicas = -1":         "redis.replicas",
		"[pubsub]":                              "pubsub.project",
		"[eventhubs]":                           "eventhubs needs either",
		"[eventhubs]\nconnection = \"hunter2\"": "eventhubs.connection",
		"[eventhubs]\nconnection = \"Endpoint=sb://h;SharedAccessKey=hunter2;EntityPath=o\"": "eventhubs.connection",
		"[eventhubs]\nconnection = \"hunter2\"\nnamespace = \"h\"":                           "eventhubs needs either",
		"[servicebus]":                           "servicebus needs either",
		"[servicebus]\nconnection = \"hunter2\"": "servicebus.connection",
		"[servicebus]\nconnection = \"Endpoint=sb://h;SharedAccessKey=hunter2;EntityPath=o\"": "servicebus.connection",
		"[servicebus]\nconnection = \"hunter2\"\nnamespace = \"h\"":                           "servicebus needs either",
		"": "nothing to do",
	} {
		err := run(t, url, text)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s\nis %v, want %s", text, err, want)
		}
		if err != nil && goName.MatchString(paths.ReplaceAllString(err.Error(), "")) {
			t.Errorf("%s\nis told of in the words of Go: %v", text, err)
		}
	}
}

// Whatever there is to do, it cannot be done without the tables.
func TestMissingTablesEndIt(t *testing.T) {
	url, _ := shop(t)
	for _, text := range []string{hooks, "[janitor]", "[reconcile]\npark = [\"mail\"]"} {
		if err := run(t, url, text); err == nil || errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "call Migrate") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The file says once how long published messages are kept: a janitor beside the relay does not take them earlier.
func TestTheJanitorLeavesWhatTheRelayKeeps(t *testing.T) {
	for text, want := range map[string]time.Duration{
		hooks + "[relay]\nthen = \"keep\"\nkeep_for = \"8760h\"\n[janitor]":                           janitor.Forever,
		hooks + "[relay]\nthen = \"keep\"\nkeep_for = \"8760h\"\n[janitor]\nkeep_published = \"48h\"": 48 * time.Hour,
		hooks + "[relay]\nthen = \"keep\"\n[janitor]":                                                 0,
		"[janitor]": 0,
	} {
		file := filepath.Join(t.TempDir(), "once.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.janitor().KeepPublished; got != want {
			t.Errorf("%s: kept for %v, want %v", text, got, want)
		}
	}
}

// The doctor gets URLs with what connects, in its own form.
func TestConfigurationHasURLsForTheDoctor(t *testing.T) {
	const key, signature = "a/b+c==", "SharedAccessSignature sr=shop&sig=a%2fb%3d&se=1&skn=ops"
	t.Setenv("CONNECTION", "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=ops;SharedAccessKey="+key)
	t.Setenv("SIGNED", "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessSignature="+signature)
	t.Setenv("EMULATOR", "Endpoint=sb://localhost:5673;SharedAccessKeyName=ops;SharedAccessKey="+key+";UseDevelopmentEmulator=true")
	for want, url := range map[string]func(*secret.Set) (string, error){
		"eventhubs://ops:a%2Fb+c==@shop.servicebus.windows.net":                                                                        (&EventHubs{Connection: "${CONNECTION}"}).URL,
		"servicebus://ops:a%2Fb+c==@shop.servicebus.windows.net":                                                                       (&ServiceBus{Connection: "${CONNECTION}"}).URL,
		"servicebus://SharedAccessSignature:SharedAccessSignature%20sr=shop&sig=a%252fb%253d&se=1&skn=ops@shop.servicebus.windows.net": (&ServiceBus{Connection: "${SIGNED}"}).URL,
		"eventhubs://ops:a%2Fb+c==@localhost:5673?emulator=true":                                                                       (&EventHubs{Connection: "${EMULATOR}"}).URL,
		"servicebus://ops:a%2Fb+c==@localhost:5673?endpoint=http%3A%2F%2Flocalhost%3A5300":                                             (&ServiceBus{Connection: "${EMULATOR}"}).URL,
		"eventhubs://shop.servicebus.windows.net":                                                                                      (&EventHubs{Namespace: "shop.servicebus.windows.net"}).URL,
		"sqs://eu-north-1": func(*secret.Set) (string, error) { return (&SQS{Region: "eu-north-1"}).URL(), nil },
		"sqs://?topics=arn%3Aaws%3Asns%3Aeu-north-1%3A1%3A": func(*secret.Set) (string, error) { return (&SQS{Topics: "arn:aws:sns:eu-north-1:1:"}).URL(), nil },
	} {
		if got, err := url(new(secret.Set)); err != nil || got != want {
			t.Errorf("%s, %v: want %s", got, err, want)
		}
	}
	if got, err := (&ServiceBus{Connection: "hunter2"}).URL(new(secret.Set)); !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "hunter2") || got != "" {
		t.Errorf("an invalid connection string is %q, %v", got, err)
	}
}
