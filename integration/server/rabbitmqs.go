//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/effectively-once/once/internal/backoff"
)

// rabbitmqsSettings make nodes that join the first one, and that pause when they
// do not see most of the nodes.
const rabbitmqsSettings = `cluster_name = %s
cluster_partition_handling = pause_minority
management.tcp.ip = 127.0.0.1
management.tcp.port = %d
`

// rabbitmqsTogether configures every Erlang. Nobody starts an epmd: that of a
// node is in this process, see distribution. A silent node is missed within
// seconds, which rabbitmq.conf would say too late.
const rabbitmqsTogether = "-start_epmd false -kernel net_ticktime 4 -kernel inet_dist_use_interface {127,0,0,1}"

// rabbitmqNode is a RabbitMQ that is a node of a cluster.
type rabbitmqNode struct {
	*rabbitmq
	cluster    *RabbitMQCluster
	own        int // which of the nodes this is
	management int // port
}

// RabbitMQCluster is a cluster of RabbitMQ. Its nodes reach each other through this
// process, which can keep them apart.
type RabbitMQCluster struct {
	Nodes []*Instance

	name, cookie string
	engines      []*rabbitmqNode
	between      *distribution
}

// StartRabbitMQs starts a cluster of nodes, which have the management plugin. It
// returns when all of them are members. The settings are lines of their
// rabbitmq.conf. The context limits only the start.
func StartRabbitMQs(ctx context.Context, nodes int, settings ...string) (*RabbitMQCluster, error) {
	shared, err := newRabbitMQ(settings)
	if err != nil {
		return nil, err
	}
	c := &RabbitMQCluster{name: "once" + strings.ToLower(rand.Text()), cookie: rand.Text()}
	ports := differentPorts(FreePort)
	for i := range nodes {
		e := &rabbitmqNode{rabbitmq: shared, cluster: c, own: i}
		if e.management, err = ports(); err != nil {
			return nil, err
		}
		c.engines = append(c.engines, e)
	}
	if c.between, err = distribute(c.nodeNames()); err != nil {
		return nil, err
	}
	for _, e := range c.engines { // one after another, because a node joins one that runs
		var node *Instance
		if node, err = start(ctx, e, ports); err != nil {
			break
		}
		c.Nodes = append(c.Nodes, node)
	}
	if err == nil {
		err = c.awaitMembers(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// nodeNames returns the names of the nodes without their host.
func (c *RabbitMQCluster) nodeNames() (names []string) {
	for i := range c.engines {
		names = append(names, fmt.Sprintf("%s-%d", c.name, i))
	}
	return names
}

// awaitMembers waits until each node sees all of them: one that finds no other
// node begins a cluster of its own.
func (c *RabbitMQCluster) awaitMembers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	pause := backoff.Backoff{First: 20 * time.Millisecond, Limit: 200 * time.Millisecond}
	for i := range c.Nodes {
		for {
			running, err := c.Running(ctx, i)
			if err == nil && len(running) == len(c.Nodes) {
				break
			}
			if late := backoff.Sleep(ctx, pause.Next()); late != nil {
				return errors.Join(fmt.Errorf("the nodes have not become a cluster: node %d sees %v: %w", i, running, late), err)
			}
		}
	}
	return nil
}

// Running returns the nodes that run, as a node sees it. A node that has paused
// does not answer.
func (c *RabbitMQCluster) Running(ctx context.Context, node int) (running []int, err error) {
	var all []struct {
		Name    string
		Running bool
	}
	if err := c.manage(ctx, node, "nodes", &all); err != nil {
		return nil, err
	}
	for _, one := range all {
		if one.Running {
			running = append(running, c.numberOf(one.Name))
		}
	}
	return running, nil
}

// Leader returns the node that leads a quorum queue or has a classic one, and the
// nodes where the queue is online, as a node sees it.
func (c *RabbitMQCluster) Leader(ctx context.Context, node int, queue string) (leader int, online []int, err error) {
	var q struct {
		Node   string
		Online []string
	}
	if err := c.manage(ctx, node, "queues/%2F/"+url.PathEscape(queue), &q); err != nil {
		return 0, nil, err
	}
	for _, name := range q.Online {
		online = append(online, c.numberOf(name))
	}
	return c.numberOf(q.Node), online, nil
}

func (c *RabbitMQCluster) numberOf(name string) int {
	for i, known := range c.nodeNames() {
		if name == known+rabbitmqHost {
			return i
		}
	}
	return -1
}

// manage asks the management plugin of a node.
func (c *RabbitMQCluster) manage(ctx context.Context, node int, what string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	e := c.engines[node]
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/api/%s", e.management, what), nil)
	if err != nil {
		return err
	}
	r.SetBasicAuth(rabbitmqUser, e.password)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", what, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// Isolate keeps a node apart from the others: nothing arrives, in both
// directions, and nobody is told. Clients still reach it.
func (c *RabbitMQCluster) Isolate(node int) { c.between.isolate(node) }

// Heal ends all partitions. What was on its way is lost.
func (c *RabbitMQCluster) Heal() { c.between.heal() }

// Stop kills the nodes, because a clean shutdown of the last one would wait for
// the others, and removes their directories.
func (c *RabbitMQCluster) Stop() error {
	var errs []error
	for _, node := range c.Nodes {
		errs = append(errs, node.Stop())
	}
	c.between.stop()
	return errors.Join(errs...)
}

func (e *rabbitmqNode) prepare(ctx context.Context, h *home) error {
	more := fmt.Sprintf(rabbitmqsSettings, e.cluster.name, e.management)
	for i, name := range e.cluster.nodeNames() {
		more += fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s\n", i+1, name+rabbitmqHost)
	}
	return e.rabbitmq.write(h, more, "[rabbitmq_management].\n", e.cluster.cookie)
}

func (e *rabbitmqNode) launch(h *home, port int) (*process, error) {
	return h.launch(syscall.SIGKILL, "env", append(e.environment(h, port), e.script)...)
}

func (e *rabbitmqNode) environment(h *home, port int) []string {
	d := e.cluster.between
	return append(e.named(h, port, d.names[e.own]+rabbitmqHost),
		"ERL_AFLAGS="+rabbitmqsTogether,
		fmt.Sprintf("ERL_EPMD_PORT=%d", d.epmds[e.own]))
}

func (*rabbitmqNode) shutdown(p *process) error { return p.cmd.Process.Kill() }

// identity is the name of the cluster, which no other has.
func (e *rabbitmqNode) identity(*home) string { return e.cluster.name }
