package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once/cmd/once/internal/show"
)

// natsView is the examined part of a server with JetStream.
type natsView struct {
	js      jetstream.JetStream
	denied  atomic.Pointer[context.CancelCauseFunc] // ends the running check
	listed  bool
	streams map[string]*jetstream.StreamInfo // the examined streams
	names   []string                         // in order
}

func dialNATS(ctx context.Context, a address) (*Broker, error) {
	v := &natsView{streams: make(map[string]*jetstream.StreamInfo)}
	o, urls, err := natsOptions(&a)
	if err != nil {
		return nil, err
	}
	o = append(o, nats.Name("once doctor"), nats.Timeout(dialTime/2), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { v.refused(err) }))
	connection, err := nats.Connect(urls, o...)
	if err != nil {
		return nil, err
	}
	if v.js, err = jetstream.New(connection); err != nil {
		connection.Close()
		return nil, err
	}
	return &Broker{name: a.String(), kind: "nats", close: connection.Close, checks: []brokerCheck{
		{"nats-account", v.told(v.account)}, {"nats-streams", v.told(v.look)}, {"nats-consumers", v.told(v.consumers)},
		{"nats-retention", v.told(v.retention)},
	}}, nil
}

// natsOptions returns the credentials and the servers of an address.
func natsOptions(a *address) (o []nats.Option, urls string, err error) {
	if file := a.take("creds"); file != "" {
		o = append(o, nats.UserCredentials(file))
	}
	if err := a.rest(); err != nil {
		return nil, "", err
	}
	switch {
	case a.signed && a.password == "":
		o = append(o, nats.Token(a.user))
	case a.signed:
		o = append(o, nats.UserInfo(a.user, a.password))
	}
	var all []string
	for _, host := range a.hosts {
		all = append(all, a.scheme+"://"+host)
	}
	return o, strings.Join(all, ","), nil
}

// told ends a check when the server denies its request. Otherwise the check
// would wait for a reply.
func (v *natsView) told(look func(context.Context, *survey) error) func(context.Context, *survey) error {
	return func(ctx context.Context, s *survey) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		v.denied.Store(&cancel)
		err := look(ctx, s)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return cause
		}
		return err
	}
}

func (v *natsView) refused(err error) {
	if cancel := v.denied.Load(); cancel != nil && errors.Is(err, nats.ErrPermissionViolation) {
		(*cancel)(err)
	}
}

var errNotListed = errors.New("this needs a list that could not be read")

// nearFull is the fraction of a limit at which it is reported.
const nearFull = 0.9

func (v *natsView) account(ctx context.Context, s *survey) error {
	info, err := v.js.AccountInfo(ctx)
	if err != nil {
		return err
	}
	for _, limit := range []struct {
		of        string
		used, max int64
	}{{"disk", int64(info.Store), info.Limits.MaxStore}, {"memory", int64(info.Memory), info.Limits.MaxMemory}} {
		if limit.max > 0 && float64(limit.used) >= nearFull*float64(limit.max) {
			s.found("nats-account-full", Warning, fmt.Sprintf("The account uses %s of its limit of %s of %s.", show.Bytes(limit.used),
				show.Bytes(limit.max), limit.of),
				"At the limit, streams accept no messages, and relays hold theirs.", "Raise the limit, or keep fewer messages.")
		}
	}
	return nil
}

// look reads the streams, except those of JetStream buckets.
func (v *natsView) look(ctx context.Context, s *survey) error {
	list := v.js.ListStreams(ctx)
	for info := range list.Info() {
		name := info.Config.Name
		if strings.HasPrefix(name, "KV_") || strings.HasPrefix(name, "OBJ_") || !s.wanted(name) {
			continue
		}
		v.streams[name], v.names = info, append(v.names, name)
		natsStream(s, info)
	}
	v.listed = list.Err() == nil
	return list.Err()
}

// takenForGranted is the default deduplication window of natsbroker.
const takenForGranted = 2 * time.Minute

func natsStream(s *survey, info *jetstream.StreamInfo) {
	c, name := &info.Config, "Stream "+show.Line(info.Config.Name)
	if c.Storage == jetstream.MemoryStorage {
		severity, means := Unsafe, "All its messages are lost when the server stops, although they were confirmed. Their effects never happen."
		if c.Replicas > 1 {
			severity, means = Warning, "Its messages are lost if most of its servers stop at the same time."
		}
		s.found("nats-memory", severity, name+" is kept in memory.", means, "Create it again with file storage.")
	}
	if info.Cluster != nil && info.Cluster.Name != "" && c.Replicas < 2 {
		s.found("nats-replicas", Warning, name+" has one replica in a cluster.",
			"If the disk of that replica is lost, so are confirmed messages. While its server is down, the stream is unavailable.",
			"Use three replicas.")
	}
	if limits := natsLimits(c); c.Discard == jetstream.DiscardOld && limits != "" {
		s.found("nats-discards-old", Warning, name+" drops its oldest messages at "+limits+".",
			"Consumers that have not received them never will. With Discard set to new, the stream rejects new messages instead, and a relay waits.",
			"Set Discard to new, or remove the limit.")
	}
	if c.NoAck {
		s.found("nats-no-ack", Unsafe, name+" does not confirm published messages.",
			"A relay never learns that a message has arrived, and publishes it again and again.", "Set NoAck to false.")
	}
	if c.Mirror == nil && len(c.Sources) == 0 && c.Duplicates > 0 && c.Duplicates < takenForGranted {
		s.found("nats-duplicate-window", Warning, fmt.Sprintf("%s drops duplicates for only %s.", name, show.Span(c.Duplicates)),
			fmt.Sprintf("natsbroker assumes %s, unless Options.DuplicateWindow is set. A message that a relay publishes again later is "+
				"delivered again. Only the keys of consumers recognise it.", show.Span(takenForGranted)),
			"Set Duplicates to at least two minutes, or set Options.DuplicateWindow to the same value.")
	}
	natsCopies(s, info, name)
}

// natsLimits checks limits at which a stream drops messages regardless of
// consumers. The age limit has its own check.
func natsLimits(c *jetstream.StreamConfig) string {
	var all []string
	if c.MaxMsgs > 0 {
		all = append(all, fmt.Sprintf("%d messages", c.MaxMsgs))
	}
	if c.MaxBytes > 0 {
		all = append(all, show.Bytes(c.MaxBytes))
	}
	if c.MaxMsgsPerSubject > 0 {
		all = append(all, fmt.Sprintf("%d messages per subject", c.MaxMsgsPerSubject))
	}
	return strings.Join(all, ", or at ")
}

// natsCopies reports where the deduplication of a stream does not reach: it
// covers only that stream.
func natsCopies(s *survey, info *jetstream.StreamInfo, name string) {
	c := &info.Config
	const do = "Do not rely on the broker to drop duplicates. Check that each consumer of this stream has a key, and that no two publishers use the same IDs."
	if c.Mirror != nil {
		s.found("nats-copies-apart", Note, name+" is a mirror of "+show.Line(c.Mirror.Name)+".",
			"It does not drop duplicates itself. It receives those that the other stream did not drop.", do)
	}
	if len(c.Sources) > 0 {
		var from []string
		for _, source := range c.Sources {
			from = append(from, show.Line(source.Name))
		}
		drops, means := "drops no duplicates", "Each of those streams drops duplicates only of its own messages, within its own window. A message that "+
			"is published again to another of them, or later, is delivered twice here."
		if c.Duplicates > 0 {
			drops = "drops duplicates for " + show.Span(c.Duplicates)
			means = "It compares messages from all of those streams as they arrive. A late duplicate is delivered twice. Of two different messages " +
				"with the same ID from two streams, one is lost."
		}
		s.found("nats-copies-apart", Warning, name+" collects the messages of "+strings.Join(from, ", ")+", and "+drops+".", means, do)
	}
	if c.RePublish != nil {
		s.found("nats-copies-apart", Note, name+" republishes its messages to "+show.Line(c.RePublish.Destination)+".",
			"Subscribers there get messages without acknowledgement, so they can miss some. The deduplication window of this stream does not apply there.",
			"Let consumers that must not miss messages read this stream.")
	}
}

// consumers reads the consumers of the examined streams.
func (v *natsView) consumers(ctx context.Context, s *survey) error {
	if !v.listed {
		return errNotListed
	}
	for _, name := range v.names {
		stream, err := v.js.Stream(ctx, name)
		if err != nil {
			return err
		}
		list := stream.ListConsumers(ctx)
		for info := range list.Info() {
			if info.Config.Durable == "" { // it belongs to a connected client and disappears with it
				continue
			}
			natsConsumer(s, v.streams[name], info)
		}
		if err := list.Err(); err != nil {
			return err
		}
	}
	return nil
}

const (
	shortWait   = time.Second
	manyAgain   = 10
	ofTheirTime = 4 // the last quarter
)

func natsConsumer(s *survey, stream *jetstream.StreamInfo, info *jetstream.ConsumerInfo) {
	c := &info.Config
	name := "Consumer " + show.Line(info.Name) + " of stream " + show.Line(info.Stream)
	if what := natsLoses(c); what != "" {
		s.found("nats-consumer-loses", Unsafe, name+" "+what+".",
			"It can lose messages, or settle them before they are handled. natsbroker rejects it.",
			"Create it again with DeclareConsumer of natsbroker.")
	}
	if what := natsRefused(c); what != "" {
		s.found("nats-consumer-refused", Warning, name+" "+what+".", "natsbroker rejects it.", "Create it again with DeclareConsumer of natsbroker.")
	}
	if c.AckPolicy == jetstream.AckExplicitPolicy && c.AckWait > 0 && c.AckWait < shortWait {
		s.found("nats-ack-wait", Warning, fmt.Sprintf("%s has an AckWait of %s.", name, show.Span(c.AckWait)),
			"After a short pause of a process or the network, all its unacknowledged messages are also delivered to another process.",
			"Set it to several seconds. The default is 30 seconds.")
	}
	if info.NumRedelivered >= manyAgain {
		s.found("nats-redelivers", Warning, fmt.Sprintf("%s has %d unacknowledged messages that were delivered before.", name, info.NumRedelivered),
			"Processes crash or stop while they handle messages, or handlers fail and no policy parks the message.", "Check the log of the consumer, and once parked list.")
	}
	if c.MaxAckPending > 0 && info.NumAckPending >= c.MaxAckPending && info.NumPending > 0 {
		s.found("nats-ack-pending-full", Warning, fmt.Sprintf("%s has %d unacknowledged messages, which is its limit.", name, info.NumAckPending),
			"It delivers no more messages until one of them is settled.", "Raise MaxAckPending above the sum of the windows of its processes, or find out what delays them.")
	}
	if c.DeliverSubject == "" && info.NumPending > 0 && info.NumWaiting == 0 && info.NumAckPending == 0 {
		s.found("nats-nobody-pulls", Warning, fmt.Sprintf("%s has %d messages waiting, and no client pulls.", name, info.NumPending),
			"They wait until the stream drops them.", "Start the consumer, or delete it if it was retired.")
	}
	natsUnread(s, stream, info, name)
}

// natsLoses reports settings that natsbroker refuses because they lose
// messages.
func natsLoses(c *jetstream.ConsumerConfig) string {
	switch {
	case c.AckPolicy == jetstream.AckNonePolicy:
		return "uses no acknowledgements"
	case c.AckPolicy == jetstream.AckAllPolicy:
		return "takes one acknowledgement for all earlier messages"
	case c.MaxDeliver > 0:
		return fmt.Sprintf("silently gives up a message after %d deliveries", c.MaxDeliver)
	case c.InactiveThreshold > 0:
		return "is deleted, with its position, when no client pulls for " + show.Span(c.InactiveThreshold)
	}
	return ""
}

// natsRefused reports settings that natsbroker refuses for other reasons.
func natsRefused(c *jetstream.ConsumerConfig) string {
	switch {
	case c.DeliverSubject != "":
		return "pushes to a subject"
	case len(c.BackOff) > 0:
		return "has a BackOff"
	case c.HeadersOnly:
		return "delivers no bodies"
	case len(c.PriorityGroups) > 0:
		return "has priority groups"
	}
	return ""
}

// natsUnread compares the position of a consumer with the oldest message. With
// a filter, dropped messages may not have matched it.
func natsUnread(s *survey, stream *jetstream.StreamInfo, info *jetstream.ConsumerInfo, name string) {
	c, state := &info.Config, &stream.State
	if stream.Config.Retention != jetstream.LimitsPolicy || c.FilterSubject != "" || len(c.FilterSubjects) > 0 {
		return
	}
	had := info.Delivered.Stream
	if had+1 < state.FirstSeq {
		s.found("nats-unread-dropped", Unsafe, fmt.Sprintf("%s has received messages up to %d, and the stream begins at %d.", name, had, state.FirstSeq),
			"The messages in between were dropped by a limit or deleted before they were delivered. Their effects never happen.",
			"Have the producers send them again, and set limits that an outage of the consumer does not reach.")
		return
	}
	age := time.Since(state.FirstTime)
	if limit := stream.Config.MaxAge; limit > 0 && state.Msgs > 0 && had < state.FirstSeq && age > limit-limit/ofTheirTime {
		s.found("nats-unread-soon", Warning, fmt.Sprintf("%s has not received a message that is %s old, and the stream drops messages after %s.", name,
			show.Span(age), show.Span(limit)),
			"This consumer will lose it soon.", "Start the consumer, or raise MaxAge until then.")
	}
}

// retention checks the retention of what registered consumers read.
func (v *natsView) retention(ctx context.Context, s *survey) error {
	if !v.listed && len(s.readers) > 0 {
		return errNotListed
	}
	for _, r := range s.readers {
		if !s.wanted(r.of[0]) {
			continue
		}
		info := v.streams[r.of[0]]
		if info == nil {
			s.missing(r, "such stream")
			continue
		}
		s.outlived(r, info.Config.MaxAge)
		if r.log {
			continue
		}
		switch _, err := v.js.Consumer(ctx, r.of[0], r.as); {
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			s.missing(r, "such consumer of the stream")
		case err != nil:
			return err
		}
	}
	return nil
}
