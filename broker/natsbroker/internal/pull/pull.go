// Package pull asks a consumer of JetStream for messages, with one request at a time: only so is it known how many may
// still come.
package pull

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker/natsbroker/internal/answers"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const longest = 30 * time.Second

// Requests are those of one session. They are not for concurrent use.
type Requests struct {
	nc       *nats.Conn
	consumer string // where it is asked
	inbox    string // where it answers

	count   uint64
	subject string        // of the last one's statuses
	left    int           // messages that may still come; 0: it has ended
	heard   time.Time     // of it
	silence time.Duration // after which it is lost
}

// New returns the requests to a consumer. What comes is sent to subjects that begin with the inbox.
func New(js jetstream.JetStream, stream, consumer, inbox string) *Requests {
	return &Requests{nc: js.Conn(), consumer: subject(js.Options()) + stream + "." + consumer, inbox: inbox}
}

// subject is where consumers are asked for messages. The library keeps its own to itself.
func subject(o jetstream.JetStreamOptions) string {
	prefix := jetstream.DefaultAPIPrefix
	switch {
	case o.Domain != "":
		prefix = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		prefix = strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return prefix + "CONSUMER.MSG.NEXT."
}

// Ask begins a request for n messages, or for as many as the consumer allows.
func (r *Requests) Ask(n int, c *jetstream.ConsumerConfig) error {
	expires := longest
	if limit := c.MaxRequestExpires; limit > 0 {
		expires = min(expires, limit)
	}
	if limit := c.MaxRequestBatch; limit > 0 {
		n = min(n, limit)
	}
	heartbeat := expires / 15
	r.count++
	r.subject = r.inbox + strconv.FormatUint(r.count, 36)
	r.left, r.heard, r.silence = n, time.Now(), 2*heartbeat+time.Second
	body := fmt.Appendf(nil, `{"expires":%d,"batch":%d,"idle_heartbeat":%d}`, expires, n, heartbeat)
	if err := r.nc.PublishRequest(r.consumer, r.subject, body); err != nil {
		r.End()
		return err
	}
	return nil
}

// End gives the request up.
func (r *Requests) End() { r.left = 0 }

// Open reports whether messages may still come.
func (r *Requests) Open() bool { return r.left > 0 }

// Silence is how long nothing is heard of a request before it is lost.
func (r *Requests) Silence() time.Duration { return r.silence }

// Quiet is how long nothing has been heard of the last request; 0: there was none.
func (r *Requests) Quiet(now time.Time) time.Duration {
	if r.count == 0 {
		return 0
	}
	return now.Sub(r.heard)
}

// Hear says that there was a word of the consumer, whether it was asked or not.
func (r *Requests) Hear(now time.Time) { r.heard = now }

// Arrived counts a message.
func (r *Requests) Arrived(now time.Time) { r.left, r.heard = max(r.left-1, 0), now }

// Heed understands a status of the request; it is false for those of others. What tells of trouble is not sorted.
func (r *Requests) Heed(m *nats.Msg, now time.Time) (trouble string, ok bool) {
	code, text, ok := answers.Status(m)
	if !ok || m.Subject != r.subject {
		return "", false
	}
	r.heard = now
	switch {
	case code == "100": // it is waited for
		return "", true
	case code == "404", code == "408", text == "Batch Completed":
	default:
		trouble = code + " " + text
	}
	r.End()
	return trouble, true
}
