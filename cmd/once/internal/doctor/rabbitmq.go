package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/effectively-once/once/cmd/once/internal/show"
)

// rabbitView reads a virtual host through the API of the management plugin.
type rabbitView struct {
	client         http.Client
	base           string // URL up to the path of the API
	user, password string
	host           string // the virtual host as a path segment
	nodes          int    // 0: not known
	version        int    // major version
	queues         []rabbitQueue
	exchanges      map[string]bool
}

// rabbitQueue is a queue as the API returns it.
type rabbitQueue struct {
	Name       string
	Type       string
	Durable    bool
	AutoDelete bool `json:"auto_delete"`
	Exclusive  bool
	Arguments  map[string]any
	Effective  json.RawMessage `json:"effective_policy_definition"` // an empty one is an object, a list or null
	Members    []string        // quorum queues only
	Online     []string
	Messages   int
	Consumers  int

	policy map[string]any
}

// virtualHost returns the virtual host in the path of a URL. An empty path
// means the host "/".
func virtualHost(path string) (string, error) {
	host, err := url.PathUnescape(strings.TrimPrefix(path, "/"))
	switch {
	case err != nil || strings.Contains(strings.TrimPrefix(path, "/"), "/"):
		return "", refuse("the path is the name of a virtual host, with %%2F for a / in it")
	case host == "":
		host = "/"
	}
	return host, nil
}

// oneHost returns the virtual host of an address with a single node.
func oneHost(a address) (host string, err error) {
	if host, err = virtualHost(a.path); err == nil {
		err = a.rest()
	}
	if err == nil && len(a.hosts) > 1 {
		err = refuse("give one host: every node knows the whole cluster")
	}
	return host, err
}

func dialRabbitAPI(ctx context.Context, a address) (*Broker, error) {
	host, err := oneHost(a)
	if err != nil {
		return nil, err
	}
	v := &rabbitView{base: a.scheme + "://" + a.hosts[0] + "/api/", user: a.user, password: a.password, host: url.PathEscape(host)}
	v.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	if err := v.get(ctx, "overview", &overview); err != nil {
		return nil, err
	}
	if _, err := fmt.Sscanf(overview.Version, "%d.", &v.version); err != nil {
		return nil, refuse("the management plugin of RabbitMQ does not answer there")
	}
	return &Broker{name: a.String(), kind: "rabbitmq", close: v.client.CloseIdleConnections, checks: []brokerCheck{
		{"rabbitmq-nodes", v.lookAtNodes}, {"rabbitmq-queues", v.look},
	}}, nil
}

const maxOfAnAnswer = 64 << 20

func (v *rabbitView) get(ctx context.Context, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.base+path, nil)
	if err != nil {
		return refuse("it names no host")
	}
	req.SetBasicAuth(v.user, v.password)
	resp, err := v.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer to /api/%s is %s", path, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxOfAnAnswer)).Decode(answer); err != nil {
		return fmt.Errorf("the answer to /api/%s is not from the management plugin: %w", path, err)
	}
	return nil
}

func (v *rabbitView) lookAtNodes(ctx context.Context, s *survey) error {
	var nodes []struct {
		Name       string
		Running    bool
		Memory     bool `json:"mem_alarm"`
		Disk       bool `json:"disk_free_alarm"`
		Partitions []string
	}
	if err := v.get(ctx, "nodes", &nodes); err != nil {
		return err
	}
	v.nodes = len(nodes)
	for _, n := range nodes {
		name := "Node " + show.Line(n.Name)
		switch {
		case !n.Running:
			s.found("rabbitmq-node-down", Warning, name+" does not run.", "Quorum queues have one replica less, and classic queues of that node are unavailable.",
				"Start it, or remove it from the cluster.")
		case len(n.Partitions) > 0:
			s.found("rabbitmq-partitioned", Unsafe, name+" is partitioned from "+show.Line(strings.Join(n.Partitions, ", "))+".",
				"The cluster is split. Classic queues lose or repeat messages when it is joined again.", "See the RabbitMQ guide to network partitions.")
		case n.Memory || n.Disk:
			s.found("rabbitmq-alarm", Warning, name+" is short of memory or disk.", "Publishing is blocked, and relays hold their messages.",
				"Free memory or disk, or find the queue that is not consumed.")
		}
	}
	return nil
}

func (v *rabbitView) look(ctx context.Context, s *survey) error {
	var exchanges []struct{ Name string }
	if err := v.get(ctx, "exchanges/"+v.host, &exchanges); err != nil {
		return err
	}
	if err := v.get(ctx, "queues/"+v.host, &v.queues); err != nil {
		return err
	}
	v.exchanges = make(map[string]bool)
	for _, e := range exchanges {
		v.exchanges[e.Name] = true
	}
	there := make(map[string]*rabbitQueue)
	for i := range v.queues {
		q := &v.queues[i]
		there[q.Name] = q
	}
	for i := range v.queues {
		q := &v.queues[i]
		if !s.wanted(q.Name) || q.Exclusive {
			continue
		}
		_ = json.Unmarshal(q.Effective, &q.policy)
		v.queue(s, q)
		v.drops(s, q, there)
	}
	for _, r := range s.readers {
		if !s.wanted(r.of[0]) {
			continue
		}
		switch q := there[r.of[0]]; {
		case q == nil:
			s.missing(r, "such queue")
		case q.Type == "stream":
			s.found("rabbitmq-stream", Unsafe, fmt.Sprintf("%s: the queue is a stream.", r.printed),
				"A consumer cannot start. One of an earlier build skips messages each time it starts.",
				"Bind a queue of DeclareQueue of rabbitbroker to the same exchange, and consume that.")
		default:
			s.unattended(r, q.Messages, q.Consumers)
		}
	}
	return nil
}

// unattended reports a registered consumer whose queue nobody consumes.
func (s *survey) unattended(r reader, messages, consumers int) {
	if messages > 0 && consumers == 0 {
		s.found("rabbitmq-no-consumer", Warning, fmt.Sprintf("%s: %s in the queue, and it has no consumer.", r.printed,
			show.Count(messages, "message is", "messages are")),
			"They wait, and are dropped if the queue reaches a limit.", "Start the consumer.")
	}
}

const minimalMembers = 3

// queue checks where a queue is stored and whether it survives a restart.
func (v *rabbitView) queue(s *survey, q *rabbitQueue) {
	name := "Queue " + show.Line(q.Name)
	switch {
	case !q.Durable:
		s.found("rabbitmq-not-durable", Unsafe, name+" is not durable.", "It is deleted with its messages when its node stops.",
			"When it is empty, delete it and create it again with DeclareQueue of rabbitbroker.")
	case q.AutoDelete:
		s.found("rabbitmq-not-durable", Unsafe, name+" is deleted when its last consumer leaves.", "Messages in it are lost then.",
			"When it is empty, delete it and create it again with DeclareQueue of rabbitbroker.")
	}
	if millis, ok := q.number("expires"); ok {
		s.found("rabbitmq-expires", Unsafe, fmt.Sprintf("%s is deleted when it is unused for %s.", name, show.Span(millisOf(millis))),
			"A consumer that does not run for that long loses its messages.", "Remove expires or x-expires.")
	}
	_, mirrored := q.policy["ha-mode"]
	switch {
	case mirrored && q.Type == "classic":
		s.found("rabbitmq-mirrored", Warning, name+" is a mirrored classic queue.",
			"A failover can lose messages that the mirrors do not have yet, and RabbitMQ 4 removed mirroring.", "Make it a quorum queue.")
	case v.nodes > 1 && q.Type == "classic", v.nodes >= minimalMembers && q.Type == "quorum" && len(q.Members) < minimalMembers:
		s.found("rabbitmq-one-node", Warning, fmt.Sprintf("%s is on %s of a cluster of %d.", name,
			show.Count(max(len(q.Members), 1), "node", "nodes"), v.nodes),
			"If one node stops, the queue can be unavailable. If its disk is lost, so are the messages.", "Make it a quorum queue on three nodes.")
	}
	if len(q.Online) < len(q.Members) {
		s.found("rabbitmq-members-down", Warning, fmt.Sprintf("%s has %d of its %d members online.", name, len(q.Online), len(q.Members)),
			"Without a majority of its members, the queue is unavailable.", "Start the other nodes.")
	}
}

func millisOf(n float64) time.Duration { return time.Duration(n) * time.Millisecond }

// withoutEnd is a delivery limit that inbox never reaches. DeclareQueue sets a
// larger one.
const withoutEnd = 100_000

// drops checks settings that make a queue drop or move messages before they are
// handled.
func (v *rabbitView) drops(s *survey, q *rabbitQueue, there map[string]*rabbitQueue) {
	name := "Queue " + show.Line(q.Name)
	exchange, moves := q.text("dead-letter-exchange")
	severity, goes := Unsafe, "dropped, and its effects never happen"
	if moves {
		severity, goes = Warning, "moved to the dead letters, where no handler gets it"
	}
	limit, limited := q.number("delivery-limit")
	if !limited && v.version >= 4 && q.Type == "quorum" {
		limit, limited = 20, true // the default
	}
	if limited && limit >= 0 && limit < withoutEnd && q.Type == "quorum" {
		s.found("rabbitmq-delivery-limit", severity, fmt.Sprintf("%s has a delivery limit of %.0f.", name, limit),
			"A message that is delivered more often, because processes crash or consumers stop, is "+goes+", although inbox would still retry it.",
			"Set x-delivery-limit to a very large number, as DeclareQueue of rabbitbroker does.")
	}
	if millis, ok := q.number("message-ttl"); ok {
		s.found("rabbitmq-ttl", severity, fmt.Sprintf("%s expires messages after %s.", name, show.Span(millisOf(millis))),
			"A message that has not been handled by then is "+goes+".", "Remove message-ttl or x-message-ttl.")
	}
	_, length := q.number("max-length")
	_, bytes := q.number("max-length-bytes")
	if overflow, _ := q.text("overflow"); (length || bytes) && !strings.HasPrefix(overflow, "reject-publish") {
		s.found("rabbitmq-drops-when-full", severity, name+" has a maximum length and removes its oldest message when it is full.",
			"That message is "+goes+".", "Set overflow to reject-publish, so that a relay waits instead.")
	}
	if !moves {
		return
	}
	key, keyed := q.text("dead-letter-routing-key")
	strategy, _ := q.text("dead-letter-strategy")
	switch {
	case exchange != "" && !v.exchanges[exchange]:
		s.found("rabbitmq-dead-letters-lost", Unsafe, name+" has the dead-letter exchange "+show.Line(exchange)+", which does not exist.",
			"Messages that are rejected or expire are dropped.", "Declare the exchange and bind a queue to it.")
	case exchange == "" && keyed && there[key] == nil:
		s.found("rabbitmq-dead-letters-lost", Unsafe, name+" sends dead letters to the queue "+show.Line(key)+", which does not exist.",
			"Messages that are rejected or expire are dropped.", "Declare the queue.")
	case q.Type != "quorum" || strategy != "at-least-once":
		s.found("rabbitmq-dead-letters-at-most-once", Warning, name+" does not confirm that its dead letters have arrived.",
			"If a node stops or the target queue is full, messages that are rejected or expire can be lost.",
			"Set Options.DeadLetter of rabbitbroker, or use a quorum queue with the dead-letter strategy at-least-once.")
	}
}

// number returns the lower value of an argument and a policy, as RabbitMQ does.
func (q *rabbitQueue) number(name string) (float64, bool) {
	a, given := q.Arguments["x-"+name].(float64)
	p, ruled := q.policy[name].(float64)
	if given && ruled {
		return min(a, p), true
	}
	return a + p, given || ruled
}

// text returns the value of an argument, or else of a policy.
func (q *rabbitQueue) text(name string) (string, bool) {
	if a, ok := q.Arguments["x-"+name].(string); ok {
		return a, true
	}
	p, ok := q.policy[name].(string)
	return p, ok
}

// amqpURL returns a URL for a client of AMQP.
func amqpURL(a address) (string, error) {
	host, err := oneHost(a)
	if err != nil {
		return "", err
	}
	user := "guest:guest"
	if a.signed {
		user = url.UserPassword(a.user, a.password).String()
	}
	at := a.scheme + "://" + user + "@" + a.hosts[0] + "/" + url.PathEscape(host)
	if _, err := amqp.ParseURI(at); err != nil {
		return "", refuse("write it as amqps://user:password@host:5671/vhost") // the text of err may contain the password
	}
	return at, nil
}

// dialAMQP checks what AMQP shows: whether queues exist and are consumed.
func dialAMQP(ctx context.Context, a address) (*Broker, error) {
	at, err := amqpURL(a)
	if err != nil {
		return nil, err
	}
	connection, err := amqp.DialConfig(at, amqp.Config{
		Dial: func(network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil { // for the handshake; the connection sets its own deadlines afterwards
				err = c.SetDeadline(time.Now().Add(dialTime))
			}
			return c, err
		}})
	if err != nil {
		return nil, err
	}
	return &Broker{name: a.String(), kind: "rabbitmq", close: func() { _ = connection.CloseDeadline(time.Now().Add(time.Second)) },
		checks: []brokerCheck{
			{"rabbitmq-queues", func(_ context.Context, s *survey) error { return amqpQueues(connection, s) }},
			{"rabbitmq-settings", func(context.Context, *survey) error { return errAMQP }},
		}}, nil
}

var errAMQP = errors.New("AMQP does not report the settings of queues: give the address of the management plugin, https://user:password@host:15671/vhost")

func amqpQueues(connection *amqp.Connection, s *survey) error {
	for _, r := range s.readers {
		if !s.wanted(r.of[0]) {
			continue
		}
		channel, err := connection.Channel() // an error closes the channel
		if err != nil {
			return err
		}
		q, err := channel.QueueDeclarePassive(r.of[0], true, false, false, false, nil)
		var refusal *amqp.Error
		switch {
		case errors.As(err, &refusal) && refusal.Code == amqp.NotFound:
			s.missing(r, "such queue")
		case err != nil:
			return err
		default:
			s.unattended(r, q.Messages, q.Consumers)
			_ = channel.Close()
		}
	}
	return nil
}
