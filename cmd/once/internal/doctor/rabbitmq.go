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

// rabbitView is what is looked at of a virtual host, by the API of the management plugin.
type rabbitView struct {
	client         http.Client
	base           string // up to the path of the API
	user, password string
	host           string // the virtual host, as a part of a path
	nodes          int    // 0: not known
	version        int    // the first number of it
	queues         []rabbitQueue
	exchanges      map[string]bool
}

// rabbitQueue is a queue as the API tells it.
type rabbitQueue struct {
	Name       string
	Type       string
	Durable    bool
	AutoDelete bool `json:"auto_delete"`
	Exclusive  bool
	Arguments  map[string]any
	Effective  json.RawMessage `json:"effective_policy_definition"` // an empty one is an object, a list or null
	Members    []string        // of a quorum queue
	Online     []string
	Messages   int
	Consumers  int

	policy map[string]any
}

// virtualHost reads the path of a URL: nothing is the host that is called /.
func virtualHost(path string) (string, error) {
	host, err := url.PathUnescape(strings.TrimPrefix(path, "/"))
	switch {
	case err != nil || strings.Contains(strings.TrimPrefix(path, "/"), "/"):
		return "", refuse("behind the host comes the name of a virtual host, with %%2F for a / in it")
	case host == "":
		host = "/"
	}
	return host, nil
}

// oneHost is the virtual host of an address that names one node.
func oneHost(a address) (host string, err error) {
	if host, err = virtualHost(a.path); err == nil {
		err = a.rest()
	}
	if err == nil && len(a.hosts) > 1 {
		err = refuse("give one host: any node answers for all")
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
		return nil, refuse("no RabbitMQ answers there, with its management plugin")
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
		return fmt.Errorf("the answer to /api/%s is not what the management plugin says: %w", path, err)
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
			s.found("rabbitmq-node-down", Warning, name+" does not run.", "Quorum queues have one disk less, and classic queues of that node are gone meanwhile.",
				"Start it, or take it out of the cluster.")
		case len(n.Partitions) > 0:
			s.found("rabbitmq-partitioned", Unsafe, name+" has lost sight of "+show.Line(strings.Join(n.Partitions, ", "))+".",
				"The cluster is split: classic queues lose or repeat messages when it is joined again.", "See what RabbitMQ says of network partitions.")
		case n.Memory || n.Disk:
			s.found("rabbitmq-alarm", Warning, name+" is short of memory or disk.", "Nobody can publish: relays hold their messages.",
				"Make room, or find out who does not consume.")
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
		if q := there[r.of[0]]; q == nil {
			s.missing(r, "such queue")
		} else {
			s.unattended(r, q.Messages, q.Consumers)
		}
	}
	return nil
}

// unattended says that nobody consumes what one of the store's consumers should.
func (s *survey) unattended(r reader, messages, consumers int) {
	if messages > 0 && consumers == 0 {
		s.found("rabbitmq-no-consumer", Warning, fmt.Sprintf("%s: %s in the queue, and nobody consumes.", r.printed,
			show.Count(messages, "message is", "messages are")),
			"They wait, and are dropped where the queue has a limit.", "Start the consumer.")
	}
}

const minimalMembers = 3

// queue looks at where a queue is, and whether it stays.
func (v *rabbitView) queue(s *survey, q *rabbitQueue) {
	name := "Queue " + show.Line(q.Name)
	switch {
	case !q.Durable:
		s.found("rabbitmq-not-durable", Unsafe, name+" is not durable.", "It is gone, with its messages, when its node stops.",
			"Delete it when it is empty, and make it anew with rabbitbroker's DeclareQueue.")
	case q.AutoDelete:
		s.found("rabbitmq-not-durable", Unsafe, name+" is deleted when its last consumer leaves.", "Messages that wait then are lost.",
			"Delete it when it is empty, and make it anew with rabbitbroker's DeclareQueue.")
	}
	if millis, ok := q.number("expires"); ok {
		s.found("rabbitmq-expires", Unsafe, fmt.Sprintf("%s is deleted when it is not used for %s.", name, show.Span(millisOf(millis))),
			"A consumer that is switched off for so long loses its messages.", "Take expires, or x-expires, away.")
	}
	_, mirrored := q.policy["ha-mode"]
	switch {
	case mirrored && q.Type == "classic":
		s.found("rabbitmq-mirrored", Warning, name+" is a classic queue with mirrors.",
			"At a failover it can lose messages that its mirrors had not got yet, and RabbitMQ 4 has no mirrors.", "Make it a quorum queue.")
	case v.nodes > 1 && q.Type == "classic", v.nodes >= minimalMembers && q.Type == "quorum" && len(q.Members) < minimalMembers:
		s.found("rabbitmq-one-node", Warning, fmt.Sprintf("%s is on %s of a cluster of %d.", name,
			show.Count(max(len(q.Members), 1), "node", "nodes"), v.nodes),
			"While that does not run, nothing comes or goes; when its disk is lost, so are the messages.", "Make it a quorum queue on three nodes.")
	}
	if len(q.Online) < len(q.Members) {
		s.found("rabbitmq-members-down", Warning, fmt.Sprintf("%s has %d of its %d members.", name, len(q.Online), len(q.Members)),
			"With less than the greater half, it takes and gives nothing.", "Start the others.")
	}
}

func millisOf(n float64) time.Duration { return time.Duration(n) * time.Millisecond }

// withoutEnd is a delivery limit that inbox does not reach. DeclareQueue sets a larger one.
const withoutEnd = 100_000

// drops looks at what makes a queue drop messages, or move them, before they were handled.
func (v *rabbitView) drops(s *survey, q *rabbitQueue, there map[string]*rabbitQueue) {
	name := "Queue " + show.Line(q.Name)
	exchange, moves := q.text("dead-letter-exchange")
	severity, goes := Unsafe, "dropped: its effects never happen"
	if moves {
		severity, goes = Warning, "moved to the dead letters, where nobody handles it"
	}
	limit, limited := q.number("delivery-limit")
	if !limited && v.version >= 4 && q.Type == "quorum" {
		limit, limited = 20, true // by default
	}
	if limited && limit >= 0 && limit < withoutEnd && q.Type == "quorum" {
		s.found("rabbitmq-delivery-limit", severity, fmt.Sprintf("%s has a delivery limit of %.0f.", name, limit),
			"A message that comes more often, when processes die or a consumer is stopped, is "+goes+", while inbox is still trying.",
			"Set x-delivery-limit to a very large number, as rabbitbroker's DeclareQueue does.")
	}
	if millis, ok := q.number("message-ttl"); ok {
		s.found("rabbitmq-ttl", severity, fmt.Sprintf("%s gives messages %s.", name, show.Span(millisOf(millis))),
			"What has not been handled by then is "+goes+".", "Take message-ttl, or x-message-ttl, away.")
	}
	_, length := q.number("max-length")
	_, bytes := q.number("max-length-bytes")
	if overflow, _ := q.text("overflow"); (length || bytes) && !strings.HasPrefix(overflow, "reject-publish") {
		s.found("rabbitmq-drops-when-full", severity, name+" has a length, and makes room by its oldest message.",
			"That is "+goes+".", "Set overflow to reject-publish: then a relay waits.")
	}
	if !moves {
		return
	}
	key, keyed := q.text("dead-letter-routing-key")
	strategy, _ := q.text("dead-letter-strategy")
	switch {
	case exchange != "" && !v.exchanges[exchange]:
		s.found("rabbitmq-dead-letters-lost", Unsafe, name+" has the dead-letter exchange "+show.Line(exchange)+", which is not there.",
			"What is rejected, or expires, is dropped.", "Declare that exchange, with a queue.")
	case exchange == "" && keyed && there[key] == nil:
		s.found("rabbitmq-dead-letters-lost", Unsafe, name+" sends dead letters to the queue "+show.Line(key)+", which is not there.",
			"What is rejected, or expires, is dropped.", "Declare that queue.")
	case q.Type != "quorum" || strategy != "at-least-once":
		s.found("rabbitmq-dead-letters-at-most-once", Warning, name+" does not wait until its dead letters have arrived.",
			"When a node stops, or the other queue is full, what is rejected or expires can be lost.",
			"Use DeadLetter of rabbitbroker's Options, or a quorum queue with the strategy at-least-once.")
	}
}

// number is the lower one of an argument and a policy: so RabbitMQ takes it.
func (q *rabbitQueue) number(name string) (float64, bool) {
	a, given := q.Arguments["x-"+name].(float64)
	p, ruled := q.policy[name].(float64)
	if given && ruled {
		return min(a, p), true
	}
	return a + p, given || ruled
}

// text is that of an argument, else that of a policy.
func (q *rabbitQueue) text(name string) (string, bool) {
	if a, ok := q.Arguments["x-"+name].(string); ok {
		return a, true
	}
	p, ok := q.policy[name].(string)
	return p, ok
}

// dialAMQP looks at what AMQP shows: whether queues are there, and are consumed.
func dialAMQP(ctx context.Context, a address) (*Broker, error) {
	host, err := oneHost(a)
	if err != nil {
		return nil, err
	}
	user := "guest:guest"
	if a.signed {
		user = url.UserPassword(a.user, a.password).String()
	}
	connection, err := amqp.DialConfig(a.scheme+"://"+user+"@"+a.hosts[0]+"/"+url.PathEscape(host), amqp.Config{
		Dial: func(network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil { // for the handshake; the connection sets its own afterwards
				err = c.SetDeadline(time.Now().Add(dialTime))
			}
			return c, err
		}})
	if errors.As(err, new(*url.Error)) {
		return nil, refuse("it is like amqps://user:password@host:5671/vhost") // its text may have the password
	}
	if err != nil {
		return nil, err
	}
	return &Broker{name: a.String(), kind: "rabbitmq", close: func() { _ = connection.CloseDeadline(time.Now().Add(time.Second)) },
		checks: []brokerCheck{
			{"rabbitmq-queues", func(_ context.Context, s *survey) error { return amqpQueues(connection, s) }},
			{"rabbitmq-settings", func(context.Context, *survey) error { return errAMQP }},
		}}, nil
}

var errAMQP = errors.New("AMQP does not tell how queues are made: give the address of the management plugin, https://user:password@host:15671/vhost")

func amqpQueues(connection *amqp.Connection, s *survey) error {
	for _, r := range s.readers {
		if !s.wanted(r.of[0]) {
			continue
		}
		channel, err := connection.Channel() // which an error ends
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
