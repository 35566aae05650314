package natsbroker

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const longestPull = 30 * time.Second

// pullRequests asks a consumer for messages, with one request at a time, so that
// the number of messages that may arrive is known. It is not safe for concurrent
// use.
type pullRequests struct {
	nc       *nats.Conn
	consumer string // subject of requests
	inbox    string // prefix of the subjects of replies

	count   uint64
	subject string        // of the statuses of the last request
	left    int           // messages that may still arrive; 0: the request has ended
	heard   time.Time     // when the server was last heard
	silence time.Duration // how long the server may be silent before the request counts as lost
}

// newPullRequests returns the requests to a consumer. inbox is the prefix of the
// subjects of replies.
func newPullRequests(js jetstream.JetStream, stream, consumer, inbox string) *pullRequests {
	return &pullRequests{nc: js.Conn(), consumer: pullSubject(js.Options()) + stream + "." + consumer, inbox: inbox}
}

// pullSubject returns the prefix of the subjects of pull requests, which the
// library does not export.
func pullSubject(o jetstream.JetStreamOptions) string {
	prefix := jetstream.DefaultAPIPrefix
	switch {
	case o.Domain != "":
		prefix = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		prefix = strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return prefix + "CONSUMER.MSG.NEXT."
}

// start starts a request for up to n messages, within the limits of the consumer.
func (r *pullRequests) start(n int, c *jetstream.ConsumerConfig) error {
	expires := longestPull
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
		r.end()
		return err
	}
	return nil
}

// end abandons the request.
func (r *pullRequests) end() { r.left = 0 }

// isOpen reports whether messages may still arrive.
func (r *pullRequests) isOpen() bool { return r.left > 0 }

// silenceLimit returns how long the server may be silent before the request
// counts as lost.
func (r *pullRequests) silenceLimit() time.Duration { return r.silence }

// sinceHeard returns how long ago the server was last heard; 0 if there was no
// request.
func (r *pullRequests) sinceHeard(now time.Time) time.Duration {
	if r.count == 0 {
		return 0
	}
	return now.Sub(r.heard)
}

// hear records that the server was heard.
func (r *pullRequests) hear(now time.Time) { r.heard = now }

// arrived counts a message.
func (r *pullRequests) arrived(now time.Time) { r.left, r.heard = max(r.left-1, 0), now }

// handleStatus handles a status of the request. ok is false for the status of
// another request. trouble is empty if the request is fine or has ended normally.
func (r *pullRequests) handleStatus(m *nats.Msg, now time.Time) (trouble string, ok bool) {
	code, text, ok := statusOf(m)
	if !ok || m.Subject != r.subject {
		return "", false
	}
	r.heard = now
	switch {
	case code == "100": // a heartbeat
		return "", true
	case code == "404", code == "408", text == "Batch Completed":
	default:
		trouble = code + " " + text
	}
	r.end()
	return trouble, true
}

// unfit returns what in the settings of a consumer loses messages or breaks the
// contract of a session, or "".
func unfit(c *jetstream.ConsumerConfig) string {
	switch {
	case c.DeliverSubject != "":
		return "pushes to a subject: take a pull consumer"
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return "has the AckPolicy " + c.AckPolicy.String() + ": set it to explicit"
	case c.MaxDeliver > 0:
		return fmt.Sprintf("drops a message in silence after %d deliveries: set MaxDeliver to -1", c.MaxDeliver)
	case len(c.BackOff) > 0:
		return "has a BackOff, which would change the delays of Return: remove it"
	case c.InactiveThreshold > 0:
		return "is removed when it is idle: set InactiveThreshold to 0, and make it durable"
	case c.HeadersOnly:
		return "delivers headers only: set HeadersOnly to false"
	case len(c.PriorityGroups) > 0:
		return "has priority groups, which this adapter does not know: remove them"
	}
	return ""
}
