//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafkaPackages name the version of Kafka, and the checksums of all jars that it
// consists of.
//
//go:embed kafka/pom.xml kafka/checksums.txt
var kafkaPackages embed.FS

// kafka is a node that is a broker and a controller. Kafka writes what it
// acknowledges to the page cache, which survives Kill.
type kafka struct {
	jars        string
	cluster     string // its name, which is random
	own         int    // which of the nodes this is
	controllers []int  // ports of all nodes, on which they agree
}

// newKafkas has Maven fetch Kafka, if it is not in the cache.
func newKafkas(ctx context.Context, nodes int, ports func() (int, error)) (all []*kafka, err error) {
	if _, err := findProgram(debianJava); err != nil {
		return nil, err
	}
	jars, err := mavenCache(ctx, kafkaPackages, "kafka")
	if err != nil {
		return nil, fmt.Errorf("fetch Kafka: %w", err)
	}
	controllers := make([]int, nodes)
	for i := range controllers {
		if controllers[i], err = ports(); err != nil {
			return nil, err
		}
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	id[0] &= 0x7f // a name that begins with - is taken for an option
	for i := range nodes {
		all = append(all, &kafka{jars: jars, cluster: base64.RawURLEncoding.EncodeToString(id), own: i, controllers: controllers})
	}
	return all, nil
}

// StartKafka starts a Kafka of one node, whose acknowledged messages survive Kill.
// The context limits only the start.
func StartKafka(ctx context.Context) (*Instance, error) {
	nodes, err := StartKafkas(ctx, 1)
	if err != nil {
		return nil, err
	}
	return nodes[0], nil
}

// StartKafkas starts a cluster of nodes. With three, a topic has two replicas more,
// and one of the nodes may be killed. The context limits only the start.
func StartKafkas(ctx context.Context, nodes int) ([]*Instance, error) {
	ports := differentPorts(FreePort)
	engines, err := newKafkas(ctx, nodes, ports)
	if err != nil {
		return nil, err
	}
	all, errs := make([]*Instance, nodes), make([]error, nodes)
	var starting sync.WaitGroup
	for i, e := range engines { // together, because none answers before most of them run
		starting.Go(func() { all[i], errs[i] = start(ctx, e, ports) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, i := range all {
			if i != nil {
				err = errors.Join(err, i.Stop())
			}
		}
		return nil, err
	}
	return all, nil
}

func (*kafka) kind() Kind { return Kafka }

// account is one without files, because no Debian package creates one for it.
func (*kafka) account() string { return "nobody" }

// settings are those of a node whose clients use a port.
func (e *kafka) settings(h *home, port int) string {
	var voters []string
	for i, port := range e.controllers {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i+1, port))
	}
	const most = 3
	replicas := min(len(voters), most)
	return strings.Join([]string{
		"process.roles=broker,controller",
		fmt.Sprintf("node.id=%d", e.own+1),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		fmt.Sprintf("listeners=CLIENTS://127.0.0.1:%d,CONTROLLERS://127.0.0.1:%d", port, e.controllers[e.own]),
		fmt.Sprintf("advertised.listeners=CLIENTS://127.0.0.1:%d", port),
		"listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLERS:PLAINTEXT",
		"controller.listener.names=CONTROLLERS",
		"inter.broker.listener.name=CLIENTS",
		"log.dirs=" + h.path("data"),
		"auto.create.topics.enable=false",
		fmt.Sprintf("default.replication.factor=%d", replicas),
		fmt.Sprintf("min.insync.replicas=%d", replicas/2+1),
		"offsets.topic.num.partitions=4",
		fmt.Sprintf("offsets.topic.replication.factor=%d", replicas),
		"transaction.state.log.num.partitions=4",
		fmt.Sprintf("transaction.state.log.replication.factor=%d", replicas),
		fmt.Sprintf("transaction.state.log.min.isr=%d", replicas/2+1),
		// Members, brokers and controllers that are gone are noticed in seconds.
		"group.initial.rebalance.delay.ms=0",
		"group.min.session.timeout.ms=100",
		"broker.heartbeat.interval.ms=500",
		"broker.session.timeout.ms=3000",
		"replica.lag.time.max.ms=5000",
		"controller.quorum.fetch.timeout.ms=2000",
		"controller.quorum.election.timeout.ms=1000",
	}, "\n") + "\n"
}

// java runs a class of Kafka.
func (e *kafka) java(h *home, class string, args ...string) (*process, error) {
	return h.launch(syscall.SIGKILL, debianJava, slices.Concat([]string{"-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(e.jars, "*"), class}, args)...)
}

// prepare formats the directory of the data. The port of its settings is not used.
func (e *kafka) prepare(ctx context.Context, h *home) error {
	const anyPort = 9092
	if err := errors.Join(h.mkdir("data"), h.write("format.properties", e.settings(h, anyPort))); err != nil {
		return err
	}
	p, err := e.java(h, "kafka.tools.StorageTool", "format", "--cluster-id", e.cluster, "--config", h.path("format.properties"))
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.kill())
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("format the data: %v; the end of the log:\n%s", p, h.logTail())
	}
	return nil
}

func (e *kafka) launch(h *home, port int) (*process, error) {
	if err := h.write("server.properties", e.settings(h, port)); err != nil {
		return nil, err
	}
	return e.java(h, "kafka.Kafka", h.path("server.properties"))
}

// shutdown kills a node of a cluster, because the last one would wait for the others.
func (e *kafka) shutdown(p *process) error {
	if len(e.controllers) > 1 {
		return p.cmd.Process.Kill()
	}
	return p.cmd.Process.Signal(syscall.SIGTERM)
}

// dsn is the address of this node, which tells clients those of the others.
func (*kafka) dsn(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// identity is the name of the cluster, which no other has.
func (e *kafka) identity(*home) string { return e.cluster }

func (*kafka) askIdentity(ctx context.Context, dsn string) (string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(dsn))
	if err != nil {
		return "", err
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // none
	answer, err := request.RequestWith(ctx, client)
	switch {
	case err != nil:
		return "", err
	case answer.ClusterID == nil || len(answer.Brokers) == 0 || answer.ControllerID < 0:
		return "", errors.New("the cluster has no controller, or no broker yet")
	}
	return *answer.ClusterID, nil
}
