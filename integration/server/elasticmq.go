//go:build linux

package server

import (
	"context"
	"embed"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"syscall"
)

// elasticmqPackages name the version of ElasticMQ, and the checksums of all jars
// that it consists of.
//
//go:embed elasticmq/pom.xml elasticmq/checksums.txt
var elasticmqPackages embed.FS

// elasticmqSettings let it name its directory: a queue has the name of it.
const elasticmqSettings = `include classpath("application.conf")
node-address { protocol = http, host = "127.0.0.1", port = %[1]d, context-path = "" }
rest-sqs { enabled = true, bind-port = %[1]d, bind-hostname = "127.0.0.1", sqs-limits = strict }
rest-stats { enabled = false }
queues { "%[2]s" {} }
`

// elasticmq is an imitation of SQS that others have written, because the service
// cannot be had. Its queues are in memory, so a restart forgets them.
type elasticmq struct{ jars string }

// newElasticMQ has Maven fetch ElasticMQ, if it is not in the cache.
func newElasticMQ(ctx context.Context) (*elasticmq, error) {
	if _, err := findProgram(debianJava); err != nil {
		return nil, err
	}
	jars, err := mavenCache(ctx, elasticmqPackages, "elasticmq")
	if err != nil {
		return nil, fmt.Errorf("fetch ElasticMQ: %w", err)
	}
	return &elasticmq{jars: jars}, nil
}

func (*elasticmq) kind() Kind { return SQS }

func (*elasticmq) account() string { return "nobody" }

func (*elasticmq) prepare(context.Context, *home) error { return nil }

func (e *elasticmq) launch(h *home, port int) (*process, error) {
	if err := h.write("elasticmq.conf", fmt.Sprintf(elasticmqSettings, port, e.identity(h))); err != nil {
		return nil, err
	}
	return h.launch(syscall.SIGKILL, debianJava, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dconfig.file="+h.path("elasticmq.conf"),
		"-cp", filepath.Join(e.jars, "*"), "org.elasticmq.server.Main")
}

// shutdown kills it, because it keeps nothing.
func (*elasticmq) shutdown(p *process) error { return p.cmd.Process.Kill() }

func (*elasticmq) dsn(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// identity is the name of its directory, as far as a queue may have it.
func (*elasticmq) identity(h *home) string { return filepath.Base(h.dir) }

// homeQueue is the URL of the queue that names the directory.
var homeQueue = regexp.MustCompile("/(" + homePrefix + "[a-z0-9-]+)</QueueUrl>")

func (*elasticmq) askIdentity(ctx context.Context, dsn string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, dsn+"/?Action=ListQueues&QueueNamePrefix="+homePrefix, nil)
	if err != nil {
		return "", err
	}
	text, err := answer(request)
	if err != nil {
		return "", err
	}
	named := homeQueue.FindSubmatch(text)
	if named == nil {
		return "", fmt.Errorf("no queue names the directory: %.200q", text)
	}
	return string(named[1]), nil
}
