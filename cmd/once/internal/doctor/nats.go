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

// natsView is what is looked at of a server with JetStream.
type natsView struct {
	js      jetstream.JetStream
	denied  atomic.Pointer[context.CancelCauseFunc] // ends the check at work
	listed  bool
	streams map[string]*jetstream.StreamInfo // that are looked at
	names   []string                         // in their order
}

func dialNATS(ctx context.Context, a address) (*Broker, error) {
	v := &natsView{streams: make(map[string]*jetstream.StreamInfo)}
	o := []nats.Option{nats.Name("once doctor"), nats.Timeout(dialTime / 2), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { v.refused(err) })}
	if file := a.take("creds"); file != "" {
		o = append(o, nats.UserCredentials(file))
	}
	if err := a.rest(); err != nil {
		return nil, err
	}
	switch {
	case a.signed && a.password == "":
		o = append(o, nats.Token(a.user))
	case a.signed:
		o = append(o, nats.UserInfo(a.user, a.password))
	}
	var urls []string
	for _, host := range a.hosts {
		urls = append(urls, a.scheme+"://"+host)
	}
	connection, err := nats.Connect(strings.Join(urls, ","), o...)
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

// told makes a check end when the server refuses its question: it would wait for the answer otherwise.
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

var errNotListed = errors.New("the streams could not be listed")

// nearFull is the part of a limit from which on it is told.
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
			s.found("nats-account-full", Warning, fmt.Sprintf("The account uses %s of %s of the %s that it may.", show.Bytes(limit.used),
				show.Bytes(limit.max), limit.of),
				"When it is full, streams take nothing more: relays hold their messages.", "Raise the limit, or keep less.")
		}
	}
	return nil
}

// look reads the streams. Those of JetStream's buckets are none of ours.
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

// takenForGranted is the window that natsbroker expects of a stream, if it is told no other.
const takenForGranted = 2 * time.Minute

func natsStream(s *survey, info *jetstream.StreamInfo) {
	c, name := &info.Config, "Stream "+show.Line(info.Config.Name)
	if c.Storage == jetstream.MemoryStorage {
		severity, means := Unsafe, "All its messages are lost when the server stops: effects never happen, although their publishers were told yes."
		if c.Replicas > 1 {
			severity, means = Warning, "Its messages are lost when most of the servers that have it stop at the same time."
		}
		s.found("nats-memory", severity, name+" is kept in memory.", means, "Make it with storage on files.")
	}
	if info.Cluster != nil && info.Cluster.Name != "" && c.Replicas < 2 {
		s.found("nats-replicas", Warning, name+" has one replica, in a cluster.",
			"It is on one disk: when that is lost, so are messages that were confirmed; while its server is down, nothing comes or goes.",
			"Give it three replicas.")
	}
	if limits := natsLimits(c); c.Discard == jetstream.DiscardOld && limits != "" {
		s.found("nats-discards-old", Warning, name+" drops its oldest messages at "+limits+".",
			"Consumers that have not had them by then never get them. With DiscardNew, the publisher is told no, and a relay waits.",
			"Set Discard to new, or take the limit away.")
	}
	if c.NoAck {
		s.found("nats-no-ack", Unsafe, name+" confirms nothing that is published to it.",
			"A relay is never told that a message has arrived, and publishes it again and again.", "Set NoAck to false.")
	}
	if c.Mirror == nil && len(c.Sources) == 0 && c.Duplicates > 0 && c.Duplicates < takenForGranted {
		s.found("nats-duplicate-window", Warning, fmt.Sprintf("%s drops copies for %s only.", name, show.Span(c.Duplicates)),
			fmt.Sprintf("natsbroker takes %s for granted, unless Options.DuplicateWindow says otherwise. What a relay publishes again later is "+
				"delivered again: only the keys of consumers find it.", show.Span(takenForGranted)),
			"Set Duplicates to two minutes or more, or say in Options.DuplicateWindow what it is.")
	}
	natsCopies(s, info, name)
}

// natsLimits are those at which a stream drops messages, whoever has had them. Its age is dealt with elsewhere.
func natsLimits(c *jetstream.StreamConfig) string {
	var all []string
	if c.MaxMsgs > 0 {
		all = append(all, fmt.Sprintf("%d messages", c.MaxMsgs))
	}
	if c.MaxBytes > 0 {
		all = append(all, show.Bytes(c.MaxBytes))
	}
	if c.MaxMsgsPerSubject > 0 {
		all = append(all, fmt.Sprintf("%d messages of a subject", c.MaxMsgsPerSubject))
	}
	return strings.Join(all, ", or at ")
}

// natsCopies says where the deduplication of a stream does not reach. It is one of that stream only.
func natsCopies(s *survey, info *jetstream.StreamInfo, name string) {
	c := &info.Config
	const do = "Do not rely on the broker for copies: see that each consumer here has a key, and that no two places use the same IDs."
	if c.Mirror != nil {
		s.found("nats-copies-apart", Note, name+" is a mirror of "+show.Line(c.Mirror.Name)+".",
			"It drops no copies itself: it has those that got past the window of the other.", do)
	}
	if len(c.Sources) > 0 {
		var from []string
		for _, source := range c.Sources {
			from = append(from, show.Line(source.Name))
		}
		drops, means := "drops no copies", "Each of those drops copies of what was published to itself, within its own window. A copy that "+
			"was published to another of them, or later, is delivered twice here."
		if c.Duplicates > 0 {
			drops = "drops copies for " + show.Span(c.Duplicates)
			means = "It compares what comes from all of those, when it comes: what is late gets through twice, and of two messages with one " +
				"ID, from two of them, one is lost."
		}
		s.found("nats-copies-apart", Warning, name+" takes in what is published to "+strings.Join(from, ", ")+", and "+drops+".", means, do)
	}
	if c.RePublish != nil {
		s.found("nats-copies-apart", Note, name+" publishes what it gets again, to "+show.Line(c.RePublish.Destination)+".",
			"Who takes it from there gets it without a confirmation, so that it may be lost, and does not share this stream's window for copies.",
			"Let consumers that must not miss anything read this stream.")
	}
}

// consumers looks at those that pull, or are pushed to, from the streams that are looked at.
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
			if info.Config.Durable == "" { // it is of a client that is here now, and goes with it
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
	ofTheirTime = 4 // the last quarter of it
)

func natsConsumer(s *survey, stream *jetstream.StreamInfo, info *jetstream.ConsumerInfo) {
	c := &info.Config
	name := "Consumer " + show.Line(info.Name) + " of stream " + show.Line(info.Stream)
	if what := natsLoses(c); what != "" {
		s.found("nats-consumer-loses", Unsafe, name+" "+what+".",
			"Messages are lost for it, or settled before they were handled. natsbroker refuses to work with it.",
			"Make it anew with natsbroker's DeclareConsumer.")
	}
	if what := natsRefused(c); what != "" {
		s.found("nats-consumer-refused", Warning, name+" "+what+".", "natsbroker does not start with it.", "Make it anew with natsbroker's DeclareConsumer.")
	}
	if c.AckPolicy == jetstream.AckExplicitPolicy && c.AckWait > 0 && c.AckWait < shortWait {
		s.found("nats-ack-wait", Warning, fmt.Sprintf("%s has an AckWait of %s.", name, show.Span(c.AckWait)),
			"A short pause of a process, or of the network, is enough to have all that is out delivered to another process beside it.",
			"Set it to several seconds, 30 by default.")
	}
	if info.NumRedelivered >= manyAgain {
		s.found("nats-redelivers", Warning, fmt.Sprintf("%s has %d messages out that were delivered before.", name, info.NumRedelivered),
			"Processes die or stop with messages in their hands, or handlers fail without a policy that parks.", "See the consumer's log, and once parked list.")
	}
	if c.MaxAckPending > 0 && info.NumAckPending >= c.MaxAckPending && info.NumPending > 0 {
		s.found("nats-ack-pending-full", Warning, fmt.Sprintf("%s has %d messages out, all that it may.", name, info.NumAckPending),
			"It delivers nothing more before one of them is settled.", "Raise MaxAckPending above the sum of the windows, or see what holds them up.")
	}
	if c.DeliverSubject == "" && info.NumPending > 0 && info.NumWaiting == 0 && info.NumAckPending == 0 {
		s.found("nats-nobody-pulls", Warning, fmt.Sprintf("%s has %d messages waiting, and nobody pulls.", name, info.NumPending),
			"They wait until the stream drops them.", "Start the consumer, or delete it if it is gone for good.")
	}
	natsUnread(s, stream, info, name)
}

// natsLoses says what natsbroker refuses because it loses messages.
func natsLoses(c *jetstream.ConsumerConfig) string {
	switch {
	case c.AckPolicy == jetstream.AckNonePolicy:
		return "wants no acks"
	case c.AckPolicy == jetstream.AckAllPolicy:
		return "takes one ack for all messages before it"
	case c.MaxDeliver > 0:
		return fmt.Sprintf("gives a message up in silence after %d deliveries", c.MaxDeliver)
	case c.InactiveThreshold > 0:
		return "is removed, with its place, when nobody has pulled for " + show.Span(c.InactiveThreshold)
	}
	return ""
}

// natsRefused says what natsbroker refuses for another reason.
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

// natsUnread compares what a consumer has had with what is still there. With a filter, what is gone may not have been its.
func natsUnread(s *survey, stream *jetstream.StreamInfo, info *jetstream.ConsumerInfo, name string) {
	c, state := &info.Config, &stream.State
	if stream.Config.Retention != jetstream.LimitsPolicy || c.FilterSubject != "" || len(c.FilterSubjects) > 0 {
		return
	}
	had := info.Delivered.Stream
	if had+1 < state.FirstSeq {
		s.found("nats-unread-dropped", Unsafe, fmt.Sprintf("%s had messages up to %d, and the stream begins at %d.", name, had, state.FirstSeq),
			"What lies between them was dropped by a limit, or deleted, before it was delivered: its effects never happen.",
			"Have their producers send them again, and set limits that a consumer's outage does not reach.")
		return
	}
	age := time.Since(state.FirstTime)
	if limit := stream.Config.MaxAge; limit > 0 && state.Msgs > 0 && had < state.FirstSeq && age > limit-limit/ofTheirTime {
		s.found("nats-unread-soon", Warning, fmt.Sprintf("%s has not had a message that is %s old, and the stream drops it at %s.", name,
			show.Span(age), show.Span(limit)),
			"It is lost for this consumer soon.", "Start the consumer, or raise MaxAge meanwhile.")
	}
}

// retention looks at what the store's consumers read.
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
