package doctor

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/effectively-once/once/cmd/once/internal/show"
)

// kafkaView is the examined part of a cluster.
type kafkaView struct {
	admin    *kadm.Client
	listed   bool
	topics   map[string]kadm.TopicDetail // the examined topics
	settings map[string]settings         // of the topics
	groups   map[string][]string         // the topics above that each group has read
}

// settings are the settings of a topic or a broker by name.
type settings map[string]string

func dialKafka(ctx context.Context, a address) (*Broker, error) {
	o, err := kafkaOptions(&a)
	if err != nil {
		return nil, err
	}
	o = append(o, kgo.ClientID("once-doctor"), kgo.RequestRetries(2))
	client, err := kgo.NewClient(o...)
	if err != nil {
		return nil, refuse("write it as kafka://host:9092,host:9092")
	}
	if err := client.Ping(ctx); err != nil {
		client.Close()
		return nil, err
	}
	v := &kafkaView{admin: kadm.NewClient(client), topics: map[string]kadm.TopicDetail{}, settings: map[string]settings{},
		groups: map[string][]string{}}
	return &Broker{name: a.String(), kind: "kafka", close: client.Close, checks: []brokerCheck{
		{"kafka-topics", v.look}, {"kafka-settings", v.configured}, {"kafka-groups", v.read}, {"kafka-retention", v.retention},
		{"kafka-positions", v.positions},
	}}, nil
}

// kafkaOptions returns the brokers and the credentials of an address.
func kafkaOptions(a *address) ([]kgo.Opt, error) {
	o := []kgo.Opt{kgo.SeedBrokers(a.hosts...)}
	switch secure := a.take("tls"); secure {
	case "true":
		o = append(o, kgo.DialTLSConfig(new(tls.Config)))
	case "", "false":
	default:
		return nil, refuse("tls is true or false")
	}
	mechanism := a.take("sasl")
	if a.signed != (mechanism != "") {
		return nil, refuse("a user and a password need ?sasl=plain, scram-sha-256 or scram-sha-512, and the reverse")
	}
	if a.signed {
		switch by := (scram.Auth{User: a.user, Pass: a.password}); mechanism {
		case "plain":
			o = append(o, kgo.SASL(plain.Auth{User: a.user, Pass: a.password}.AsMechanism()))
		case "scram-sha-256":
			o = append(o, kgo.SASL(by.AsSha256Mechanism()))
		case "scram-sha-512":
			o = append(o, kgo.SASL(by.AsSha512Mechanism()))
		default:
			return nil, refuse("sasl is plain, scram-sha-256 or scram-sha-512")
		}
	}
	return o, a.rest()
}

func (v *kafkaView) look(ctx context.Context, s *survey) error {
	all, err := v.admin.Metadata(ctx)
	if err != nil {
		return err
	}
	v.listed = true
	for _, topic := range all.Topics.Sorted() {
		if topic.IsInternal || strings.HasPrefix(topic.Topic, "__") || !s.wanted(topic.Topic) {
			continue
		}
		v.topics[topic.Topic] = topic
		kafkaTopic(s, topic)
	}
	return nil
}

func kafkaTopic(s *survey, t kadm.TopicDetail) {
	name := "Topic " + show.Line(t.Topic)
	if t.Partitions.NumReplicas() == 1 {
		s.found("kafka-replicas", Warning, name+" has one replica.",
			"If the disk of that replica is lost, so are confirmed messages. While its broker is down, the topic is unavailable.",
			"Use three replicas, and set min.insync.replicas to 2.")
	}
	for _, p := range t.Partitions.Sorted() {
		switch {
		case p.Leader < 0 || p.Err != nil:
			s.found("kafka-offline", Warning, fmt.Sprintf("Partition %d of %s has no leader.", p.Partition, show.Line(t.Topic)),
				"The partition is unavailable.", "Start the brokers that hold it.")
		case len(p.ISR) < len(p.Replicas):
			s.found("kafka-under-replicated", Warning, fmt.Sprintf("Partition %d of %s has %d of %d replicas in sync.", p.Partition,
				show.Line(t.Topic), len(p.ISR), len(p.Replicas)),
				"acks=all waits only for replicas in sync.", "Find out why the other replicas lag.")
		}
	}
}

var errTopics = errors.New("the topics could not be listed")

// configured reads the settings of the topics.
func (v *kafkaView) configured(ctx context.Context, s *survey) error {
	if !v.listed {
		return errTopics
	}
	names := slices.Sorted(maps.Keys(v.topics))
	if len(names) == 0 {
		return nil
	}
	all, err := v.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return err
	}
	for _, of := range all {
		if of.Err != nil {
			return fmt.Errorf("topic %s: %w", show.Line(of.Name), of.Err)
		}
		v.settings[of.Name] = settingsOf(of)
	}
	for _, name := range names {
		if set, ok := v.settings[name]; ok {
			kafkaSettings(s, v.topics[name], set)
		}
	}
	return nil
}

func settingsOf(of kadm.ResourceConfig) settings {
	all := make(settings)
	for _, c := range of.Configs {
		all[c.Key] = c.MaybeValue()
	}
	return all
}

func kafkaSettings(s *survey, t kadm.TopicDetail, set settings) {
	name, replicas := "Topic "+show.Line(t.Topic), t.Partitions.NumReplicas()
	if least, err := strconv.Atoi(set["min.insync.replicas"]); err == nil && least < 2 && replicas > 1 {
		s.found("kafka-min-insync", Warning, fmt.Sprintf("%s has %d replicas and min.insync.replicas %d.", name, replicas, least),
			"A message can be confirmed when only one disk has it. If that disk is lost, so is the message.", "Set it to 2.")
	}
	if set["unclean.leader.election.enable"] == "true" && replicas > 1 {
		s.found("kafka-unclean-election", Unsafe, name+" may elect a leader that is not in sync.",
			"A failover can lose confirmed messages.", "Set unclean.leader.election.enable to false.")
	}
}

// horizon returns how long a topic can deliver a message, by the rules of
// kafkabroker. 0 means for ever. Kafka drops whole segments.
func (set settings) horizon() (time.Duration, error) {
	const slack, century = 10 * time.Minute, int64(100 * 365 * 24 * time.Hour / time.Millisecond)
	if policy, ok := set["cleanup.policy"]; !ok || !strings.Contains(policy, "delete") {
		return 0, nil
	}
	retention, errRetention := strconv.ParseInt(set["retention.ms"], 10, 64)
	segment, errSegment := strconv.ParseInt(set["segment.ms"], 10, 64)
	switch {
	case errRetention != nil || errSegment != nil:
		return 0, errors.New("the cluster does not report retention.ms or segment.ms of a topic")
	case retention < 0 || retention > century || segment > century:
		return 0, nil
	}
	return time.Duration(retention+segment)*time.Millisecond + slack, nil
}

// read reads the offsets of groups: those of the registered consumers, or all
// groups that have read one of the topics.
func (v *kafkaView) read(ctx context.Context, s *survey) error {
	if !v.listed {
		return errTopics
	}
	var groups []string
	for _, r := range s.readers {
		if !slices.Contains(groups, r.as) {
			groups = append(groups, r.as)
		}
	}
	if len(s.readers) == 0 || s.only != "" {
		all, err := v.admin.ListGroups(ctx)
		if err != nil {
			return err
		}
		groups = all.Groups()
	}
	names := slices.Sorted(maps.Keys(v.topics))
	if len(groups) == 0 || len(names) == 0 {
		return nil
	}
	starts, err := v.admin.ListStartOffsets(ctx, names...)
	if err != nil {
		return err
	}
	for _, group := range groups {
		had, err := v.admin.FetchOffsets(ctx, group)
		switch {
		case errors.Is(err, kerr.GroupIDNotFound): // the group has not committed anything
			continue
		case err != nil:
			return fmt.Errorf("group %s: %w", show.Line(group), err)
		}
		for _, topic := range names {
			if len(had[topic]) == 0 {
				continue
			}
			v.groups[group] = append(v.groups[group], topic)
			if err := v.unread(ctx, s, group, topic, had[topic], starts[topic]); err != nil {
				return err
			}
		}
	}
	v.compacted(s)
	return v.expiring(ctx, s)
}

// unread compares the offset of a group with the oldest message and with the
// messages that are dropped soon.
func (v *kafkaView) unread(ctx context.Context, s *survey, group, topic string, had map[int32]kadm.OffsetResponse,
	starts map[int32]kadm.ListedOffset) error {
	var young kadm.ListedOffsets
	keep, err := strconv.ParseInt(v.settings[topic]["retention.ms"], 10, 64)
	limited := err == nil && keep > 0 && strings.Contains(v.settings[topic]["cleanup.policy"], "delete")
	if limited {
		if young, err = v.admin.ListOffsetsAfterMilli(ctx, time.Now().UnixMilli()-(keep-keep/ofTheirTime), topic); err != nil {
			return err
		}
	}
	for _, number := range slices.Sorted(maps.Keys(had)) {
		at := had[number].At
		name := fmt.Sprintf("Group %s is at offset %d in partition %d of %s", show.Line(group), at, number, show.Line(topic))
		start, begins := starts[number]
		first, known := young.Lookup(topic, number)
		switch {
		case had[number].Err != nil || at < 0:
		case begins && start.Err == nil && at < start.Offset:
			s.found("kafka-unread-dropped", Unsafe, fmt.Sprintf("%s, which begins at %d.", name, start.Offset),
				"The messages in between were dropped before they were settled. Their effects may never happen. kafkabroker stops there and does not skip them.",
				"Have the producers send them again, then move the offset of the group. Keep messages for longer than an outage lasts.")
		case known && first.Err == nil && at < first.Offset:
			s.found("kafka-unread-soon", Warning, fmt.Sprintf("%s, where messages are older than three quarters of retention.ms.", name),
				"This group will lose them soon.", "Start its consumers, or raise retention.ms until then.")
		}
	}
	return nil
}

// compacted finds topics that groups read and that drop older messages of a
// key.
func (v *kafkaView) compacted(s *survey) {
	var topics []string
	for _, read := range v.groups {
		topics = append(topics, read...)
	}
	slices.Sort(topics)
	for _, topic := range slices.Compact(topics) {
		if strings.Contains(v.settings[topic]["cleanup.policy"], "compact") {
			s.found("kafka-compacted", Warning, "Topic "+show.Line(topic)+" is compacted and read by a group.",
				"Kafka drops older messages with the same key, which is the ordering key, even if the group has not read them.",
				"Keep it if each message holds the whole state of its key. Otherwise set cleanup.policy to delete.")
		}
	}
}

// expiring compares how long the cluster keeps the offsets of a group with how
// long it keeps messages.
func (v *kafkaView) expiring(ctx context.Context, s *survey) error {
	if len(v.groups) == 0 {
		return nil
	}
	brokers, err := v.admin.ListBrokers(ctx)
	if err != nil || len(brokers) == 0 {
		return err
	}
	all, err := v.admin.DescribeBrokerConfigs(ctx, brokers[0].NodeID)
	if err != nil {
		return err
	}
	for _, of := range all {
		if of.Err != nil {
			return of.Err
		}
		minutes, err := strconv.ParseInt(settingsOf(of)["offsets.retention.minutes"], 10, 64)
		if keep := time.Duration(minutes) * time.Minute; err == nil && keep < shortOffsets {
			s.found("kafka-offsets-expire", Warning, fmt.Sprintf("offsets.retention.minutes is %d.", minutes),
				"A group that does not run for "+show.Span(keep)+" loses its offsets. With kafkabroker it starts again at the oldest message, and keys "+
					"and positions tell which messages were handled.",
				"Set it to at least a week, and to more than the longest time that a consumer does not run.")
		}
	}
	return nil
}

// shortOffsets is Kafka's default retention of offsets.
const shortOffsets = 7 * 24 * time.Hour

func (v *kafkaView) retention(_ context.Context, s *survey) error {
	if !v.listed && len(s.readers) > 0 {
		return errTopics
	}
	for _, r := range s.readers {
		longest, endless := time.Duration(0), false
		for _, topic := range r.of {
			if !s.wanted(topic) {
				continue
			}
			if _, there := v.topics[topic]; !there {
				s.missing(r, "topic "+show.Line(topic))
				continue
			}
			set, read := v.settings[topic]
			if !read {
				return errors.New("the settings of the topics could not be read")
			}
			horizon, err := set.horizon()
			if err != nil {
				return err
			}
			longest, endless = max(longest, horizon), endless || horizon == 0
		}
		switch {
		case endless:
			s.outlived(r, 0)
		case longest > 0:
			s.outlived(r, longest)
		}
	}
	return nil
}

// positions compares the positions of registered consumers with the existing
// partitions.
func (v *kafkaView) positions(_ context.Context, s *survey) error {
	for _, r := range s.readers {
		for _, topic := range r.of {
			t, there := v.topics[topic]
			places, anew := 0, false
			for _, p := range r.places {
				if of, _, _ := strings.Cut(p.Partition, "/"); of != topic {
					continue
				}
				places++
				_, id, told := strings.Cut(p.Log, "#")
				anew = anew || told && t.ID != (kadm.TopicID{}) && id != hex.EncodeToString(t.ID[:])
			}
			switch {
			case !there:
			case anew:
				s.found("kafka-topic-anew", Warning, fmt.Sprintf("%s: topic %s was deleted and created again.", r.printed, show.Line(topic)),
					"The stored positions belong to the deleted topic. The consumer stops with inbox.ErrLogChanged.",
					"Find out which messages of the deleted topic were not handled. Then start with another consumer name and another group.")
			case places > 0 && places < len(t.Partitions):
				s.found("kafka-partitions-added", Warning, fmt.Sprintf("%s has positions in %d of %d partitions of %s.", r.printed, places,
					len(t.Partitions), show.Line(topic)),
					"Partitions were added, or the consumer has not read all of them yet. Messages of a key that moved to another partition can overtake older ones.",
					"Check that the consumer runs and had read all messages before partitions were added, or detect older messages by a version.")
			}
		}
	}
	return nil
}
