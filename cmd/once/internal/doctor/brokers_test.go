package doctor

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
)

// seen are the findings of what no server in a test's process can be brought to.
func seen(look func(*survey)) (names []string) {
	s := &survey{report: new(Report), merged: make(map[Finding]int)}
	look(s)
	for _, f := range s.report.Findings {
		names = append(names, f.Name)
	}
	return names
}

func TestNATSInACluster(t *testing.T) {
	in := func(cluster string, replicas int, storage jetstream.StorageType) []string {
		info := &jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: "s", Replicas: replicas, Storage: storage}, Cluster: &jetstream.ClusterInfo{Name: cluster}}
		return seen(func(s *survey) { natsStream(s, info) })
	}
	if got := in("c", 1, jetstream.FileStorage); !slices.Equal(got, []string{"nats-replicas"}) {
		t.Errorf("one replica in a cluster: %v", got)
	}
	if got := slices.Concat(in("c", 3, jetstream.FileStorage), in("", 1, jetstream.FileStorage)); got != nil {
		t.Errorf("three, and a server alone: %v", got)
	}
	if got := in("c", 3, jetstream.MemoryStorage); !slices.Equal(got, []string{"nats-memory"}) {
		t.Errorf("three in memory: %v", got)
	}
}

func TestNATSMessagesThatAreNearlyTooOld(t *testing.T) {
	at := func(age time.Duration, had uint64, filter string) []string {
		stream := &jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: "s", MaxAge: 4 * time.Hour},
			State: jetstream.StreamState{Msgs: 5, FirstSeq: 11, LastSeq: 15, FirstTime: time.Now().Add(-age)}}
		info := &jetstream.ConsumerInfo{Config: jetstream.ConsumerConfig{FilterSubject: filter}, Delivered: jetstream.SequenceInfo{Stream: had}}
		return seen(func(s *survey) { natsUnread(s, stream, info, "Consumer c") })
	}
	if got := at(3*time.Hour+time.Minute, 10, ""); !slices.Equal(got, []string{"nats-unread-soon"}) {
		t.Errorf("in the last quarter: %v", got)
	}
	if got := slices.Concat(at(3*time.Hour-time.Minute, 10, ""), at(3*time.Hour+time.Minute, 11, ""), at(3*time.Hour+time.Minute, 0, "x")); got != nil {
		t.Errorf("younger, had, or perhaps not its own: %v", got)
	}
}

func TestKafkaPartitionsInTrouble(t *testing.T) {
	at := func(leader int32, isr ...int32) []string {
		topic := kadm.TopicDetail{Topic: "orders", Partitions: kadm.PartitionDetails{0: {Topic: "orders", Leader: leader, Replicas: []int32{1, 2, 3}, ISR: isr}}}
		return seen(func(s *survey) { kafkaTopic(s, topic) })
	}
	for _, test := range []struct {
		got  []string
		want string
	}{{at(1, 1, 2, 3), ""}, {at(1, 1, 2), "kafka-under-replicated"}, {at(-1), "kafka-offline"}} {
		if (test.want != "" || test.got != nil) && !slices.Equal(test.got, []string{test.want}) {
			t.Errorf("found %v, want %q", test.got, test.want)
		}
	}
}

// What is found of many things is one finding, and not as long as they are many.
func TestFindingsOfManyThings(t *testing.T) {
	s := &survey{report: new(Report), merged: make(map[Finding]int)}
	for range 25 {
		s.found(notChecked, Note, "One.", "means", "do")
	}
	s.found(notChecked, Note, "Another.", "means something else", "do")
	if len(s.report.Findings) != 2 || len(s.report.Findings[0].What) > 80 {
		t.Errorf("found %+v", s.report.Findings)
	}
}
