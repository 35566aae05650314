package doctor_test

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/internal/testenv"
)

// rabbit is the management plugin of RabbitMQ: it answers with what 3.10 does, shortened. Nodes and queues are ones of a
// test.
type rabbit struct{ version, nodes, queues string }

const (
	oneNode   = `{"name":"rabbit@one","running":true,"mem_alarm":false,"disk_free_alarm":false,"partitions":[]}`
	goodQueue = `{"name":"good","durable":true,"auto_delete":false,"exclusive":false,"type":"quorum","consumers":1,"messages":0,` +
		`"arguments":{"x-delivery-limit":1073741824,"x-queue-type":"quorum"},"effective_policy_definition":null,` +
		`"leader":"rabbit@one","members":["rabbit@one"],"online":["rabbit@one"],"vhost":"shop/eu"}`
	letters = `{"name":"letters","durable":true,"auto_delete":false,"exclusive":false,"type":"classic","arguments":{},` +
		`"effective_policy_definition":{},"messages":3,"consumers":0}`
)

func (b rabbit) serve(t *testing.T) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if password != "s3cret" || r.Method != http.MethodGet || user == "guest" && r.URL.Path == "/api/nodes" {
			http.Error(w, `{"error":"not_authorised","reason":"Not monitor user"}`, http.StatusUnauthorized)
			return
		}
		switch r.URL.EscapedPath() {
		case "/api/overview":
			fmt.Fprintf(w, `{"management_version":"3.10.8","rabbitmq_version":%q,"cluster_name":"rabbit@one"}`, cmp.Or(b.version, "3.10.8"))
		case "/api/nodes":
			fmt.Fprintf(w, "[%s]", cmp.Or(b.nodes, oneNode))
		case "/api/exchanges/shop%2Feu":
			fmt.Fprint(w, `[{"arguments":{},"auto_delete":false,"durable":true,"internal":false,"name":"","type":"direct","vhost":"shop/eu"},`+
				`{"arguments":{},"auto_delete":false,"durable":true,"internal":false,"name":"dead","type":"topic","vhost":"shop/eu"}]`)
		case "/api/queues/shop%2Feu":
			fmt.Fprintf(w, "[%s]", b.queues)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.Replace(s.URL, "http://", "http://ops:s3cret@", 1) + "/shop%2Feu"
}

// queue is the good one, but for what is changed.
func queue(changes ...string) string { return strings.NewReplacer(changes...).Replace(goodQueue) }

// classic is a queue with arguments, or an effective policy.
func classic(arguments, policy string) string {
	return strings.NewReplacer(`"arguments":{}`, `"arguments":{`+arguments+`}`, "{},\"messages\"", "{"+policy+"},\"messages\"").Replace(letters)
}

func TestRabbitMQ(t *testing.T) {
	two := oneNode + "," + strings.Replace(oneNode, "one", "two", 1)
	three := two + "," + strings.Replace(oneNode, "one", "three", 1)
	for _, test := range []struct {
		rabbit
		what, findings string
	}{
		{rabbit{queues: goodQueue + "," + letters}, "", ""},
		{rabbit{queues: letters, nodes: strings.Replace(oneNode, `"running":true`, `"running":false`, 1)}, "warning rabbitmq-node-down: Node rabbit@one", "rabbitmq-node-down"},
		{rabbit{queues: letters, nodes: strings.Replace(oneNode, "[]", `["rabbit@two"]`, 1)}, "unsafe rabbitmq-partitioned: Node rabbit@one is partitioned from rabbit@two.", "rabbitmq-partitioned"},
		{rabbit{queues: letters, nodes: strings.Replace(oneNode, `"disk_free_alarm":false`, `"disk_free_alarm":true`, 1)}, "", "rabbitmq-alarm"},
		{rabbit{queues: queue(`"durable":true`, `"durable":false`)}, "unsafe rabbitmq-not-durable: Queue good is not durable.", "rabbitmq-not-durable"},
		{rabbit{queues: queue(`"auto_delete":false`, `"auto_delete":true`)}, "deleted when its last consumer leaves", "rabbitmq-not-durable"},
		{rabbit{queues: queue(`"exclusive":false`, `"exclusive":true`, `"durable":true`, `"durable":false`)}, "", ""},
		{rabbit{queues: classic(`"x-expires":1800000`, "")}, "unsafe rabbitmq-expires: Queue letters is deleted when it is unused for 30 m.", "rabbitmq-expires"},
		{rabbit{queues: classic("", `"ha-mode":"all"`)}, "warning rabbitmq-mirrored: ", "rabbitmq-mirrored"},
		{rabbit{queues: letters, nodes: two}, "Queue letters is on 1 node of a cluster of 2.", "rabbitmq-one-node"},
		{rabbit{queues: goodQueue, nodes: two}, "", ""},
		{rabbit{queues: goodQueue, nodes: three}, "Queue good is on 1 node of a cluster of 3.", "rabbitmq-one-node"},
		{rabbit{queues: queue(`"online":["rabbit@one"]`, `"online":[]`)}, "Queue good has 0 of its 1 members online.", "rabbitmq-members-down"},
		{rabbit{queues: queue("1073741824", "20")}, "unsafe rabbitmq-delivery-limit: Queue good has a delivery limit of 20.", "rabbitmq-delivery-limit"},
		{rabbit{queues: queue(`"x-delivery-limit":1073741824,`, "")}, "", ""},
		{rabbit{queues: queue(`"x-delivery-limit":1073741824,`, ""), version: "4.1.0"}, "a delivery limit of 20", "rabbitmq-delivery-limit"},
		{rabbit{queues: queue("1073741824", "-1"), version: "4.1.0"}, "", ""},
		{rabbit{queues: queue("1073741824", `20,"x-dead-letter-exchange":"dead","x-dead-letter-strategy":"at-least-once"`)},
			"warning rabbitmq-delivery-limit: ", "rabbitmq-delivery-limit"},
		{rabbit{queues: classic("", `"message-ttl":5000`)}, "unsafe rabbitmq-ttl: Queue letters expires messages after 5 s.", "rabbitmq-ttl"},
		{rabbit{queues: classic(`"x-message-ttl":7000`, `"message-ttl":5000`)}, "expires messages after 5 s.", "rabbitmq-ttl"},
		{rabbit{queues: classic(`"x-max-length":10`, "")}, "unsafe rabbitmq-drops-when-full: ", "rabbitmq-drops-when-full"},
		{rabbit{queues: classic(`"x-max-length-bytes":10,"x-overflow":"drop-head"`, "")}, "", "rabbitmq-drops-when-full"},
		{rabbit{queues: classic(`"x-max-length":10,"x-overflow":"reject-publish"`, "")}, "", ""},
		{rabbit{queues: classic(`"x-dead-letter-exchange":"dead"`, "")}, "warning rabbitmq-dead-letters-at-most-once: ", "rabbitmq-dead-letters-at-most-once"},
		{rabbit{queues: classic("", `"dead-letter-exchange":"nowhere"`)}, "the dead-letter exchange nowhere, which does not exist", "rabbitmq-dead-letters-lost"},
		{rabbit{queues: classic(`"x-dead-letter-exchange":"","x-dead-letter-routing-key":"nowhere"`, "")}, "to the queue nowhere, which does not exist", "rabbitmq-dead-letters-lost"},
		{rabbit{queues: queue("1073741824", `1073741824,"x-dead-letter-exchange":"","x-dead-letter-routing-key":"letters","x-dead-letter-strategy":"at-least-once"`) +
			"," + letters}, "", ""},
	} {
		r := examine(t, test.serve(t), nil, "")
		want(t, r, test.what, strings.Fields(test.findings)...)
		if len(r.Checks) != 2 {
			t.Errorf("checks: %v", r.Checks)
		}
	}
}

// What the store's consumers read is looked at, and nothing else.
func TestRabbitMQAgainstTheStore(t *testing.T) {
	url := rabbit{queues: goodQueue + "," + strings.Replace(letters, "true", "false", 1) + "," + strings.Replace(letters, `"name":"letters"`, `"name":"alone"`, 1) + "," +
		strings.NewReplacer(`"name":"letters"`, `"name":"empty"`, `"messages":3`, `"messages":0`).Replace(letters) + "," +
		strings.NewReplacer(`"name":"letters"`, `"name":"log"`, `"classic"`, `"stream"`).Replace(letters)}.serve(t)
	for of, finding := range map[string]string{"good": "", "empty": "", "gone": "source-missing", "alone": "rabbitmq-no-consumer", "log": "rabbitmq-stream"} {
		at := fresh(t)
		register(t, at, "billing", "rabbitmq queue "+of, 0)
		want(t, examine(t, url, at, ""), "billing (rabbitmq queue "+of+"): ", strings.Fields(finding)...)
	}
}

func TestRabbitMQThatCannotBeAsked(t *testing.T) {
	url := rabbit{queues: letters}.serve(t)
	r := examine(t, strings.Replace(url, "ops:", "guest:", 1), nil, "")
	want(t, r, "note not-checked: rabbitmq-nodes: the answer to /api/nodes is 401 Unauthorized", "not-checked")
	r = examine(t, strings.TrimSuffix(url, "eu"), nil, "")
	want(t, r, "note not-checked: rabbitmq-queues: the answer to /api/exchanges/shop%2F is 404 Not Found", "not-checked")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer other.Close()
	for from, want := range map[string]string{
		strings.Replace(url, "s3cret", "wr0ng", 1):                    "the answer to /api/overview is 401",
		strings.Replace(other.URL, "http://", "http://ops:wr0ng@", 1): "the management plugin of RabbitMQ does not answer there",
		"https://ops:wr0ng@127.0.0.1:1":                               "cannot connect to https://127.0.0.1:1: ",
		"https://ops:wr0ng@127.0.0.1:1/a/b":                           "the name of a virtual host",
		"https://ops:wr0ng@127.0.0.1:1,127.0.0.1:2":                   "give one host",
		"amqp://ops:wr0ng@127.0.0.1:1":                                "cannot connect to amqp://127.0.0.1:1: ",
		"amqp://ops:wr0ng@127.0.0.1:x":                                "a host is not of the form host:port",
	} {
		b, err := doctor.Dial(t.Context(), from)
		if err == nil {
			b.Close()
			t.Errorf("%s is connected", from)
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("%s: %v, want %q", from, err, want)
		}
	}
}

// AMQP shows whether a queue is there, and who consumes. The rest is said not to be seen.
func TestAMQP(t *testing.T) {
	url := testenv.RabbitMQ(t)
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	testenv.CheckRabbitMQ(t, c.Properties)
	channel, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	name := "doctor-" + rand.Text()
	if _, err := channel.QueueDeclare(name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = channel.QueueDelete(name, false, false, false) }()
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirmed, err := channel.PublishWithDeferredConfirm("", name, true, false, amqp.Publishing{Body: []byte("x")})
	if err != nil || !confirmed.Wait() {
		t.Fatal("not published", err)
	}
	for of, finding := range map[string]string{name: "rabbitmq-no-consumer", name + "-gone": "source-missing"} {
		at := fresh(t)
		register(t, at, "billing", "rabbitmq queue "+of, 0)
		want(t, examine(t, url, at, ""), "billing (rabbitmq queue "+of+"): ", finding, "not-checked")
	}
}
