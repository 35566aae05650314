package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
)

// startKafka starts a cluster in process.
func startKafka(t *testing.T, o ...kfake.Opt) (cluster *kfake.Cluster, url string, admin *kadm.Client, client *kgo.Client) {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3)}, o...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return cluster, "kafka://" + strings.Join(cluster.ListenAddrs(), ","), kadm.NewClient(client), client
}

// Kafka itself, of one node, answers as kfake does.
func TestKafkaItself(t *testing.T) {
	address := testenv.Kafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	is, err := admin.BrokerMetadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.CheckKafka(t, is.Cluster)
	name := fmt.Sprint("doctor-", time.Now().UnixNano())
	topic(t, admin, name, 1, 1, "cleanup.policy", "compact")
	commit(t, admin, name, name, 0)
	want(t, examine(t, "kafka://"+address, nil, name), "warning kafka-replicas: Topic "+name+" has one replica.",
		"kafka-replicas", "kafka-compacted")
}

const week = "604800000"

// topic makes one that is as it should be, but for what is set otherwise.
func topic(t *testing.T, admin *kadm.Client, name string, partitions int32, replicas int16, set ...string) {
	t.Helper()
	all := map[string]*string{}
	for i, pairs := 0, append([]string{"min.insync.replicas", "2", "cleanup.policy", "delete", "retention.ms", week, "segment.ms", "3600000"}, set...); i < len(pairs); i += 2 {
		all[pairs[i]] = &pairs[i+1]
	}
	if _, err := admin.CreateTopic(t.Context(), partitions, replicas, all, name); err != nil {
		t.Fatal(err)
	}
}

func commit(t *testing.T, admin *kadm.Client, group, topic string, at int64) {
	t.Helper()
	var o kadm.Offsets
	o.AddOffset(topic, 0, at, -1)
	if err := admin.CommitAllOffsets(t.Context(), group, o); err != nil {
		t.Fatal(err)
	}
}

func produce(t *testing.T, client *kgo.Client, topic string, at ...time.Time) {
	t.Helper()
	for _, made := range at {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x"), Timestamp: made}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKafkaTopics(t *testing.T) {
	_, url, admin, _ := startKafka(t)
	topic(t, admin, "good", 1, 3)
	commit(t, admin, "billing", "good", 0)
	for _, test := range []struct {
		name          string
		replicas      int16
		set           []string
		what, finding string
	}{
		{"single", 1, nil, "warning kafka-replicas: Topic single has one replica.", "kafka-replicas"},
		{"least", 3, []string{"min.insync.replicas", "1"}, "warning kafka-min-insync: Topic least has 3 replicas and min.insync.replicas 1.", "kafka-min-insync"},
		{"unclean", 3, []string{"unclean.leader.election.enable", "true"}, "unsafe kafka-unclean-election: ", "kafka-unclean-election"},
		{"unread", 3, []string{"cleanup.policy", "compact"}, "", ""}, // by any group
		{"compacted", 3, []string{"cleanup.policy", "compact"}, "warning kafka-compacted: Topic compacted is compacted and read by a group.", "kafka-compacted"},
	} {
		topic(t, admin, test.name, 1, test.replicas, test.set...)
		if test.name != "unread" {
			commit(t, admin, "of "+test.name, test.name, 0)
		}
		var names []string
		if test.finding != "" {
			names = []string{test.finding}
		}
		want(t, examine(t, url, nil, test.name), test.what, names...)
	}
	r := examine(t, url, nil, "good")
	want(t, r, "")
	if len(r.Checks) != 5 {
		t.Errorf("checks: %v", r.Checks)
	}
	want(t, examine(t, url, nil, ""), "", "kafka-replicas", "kafka-min-insync", "kafka-unclean-election", "kafka-compacted")
}

func TestKafkaOffsetsThatExpire(t *testing.T) {
	_, url, admin, _ := startKafka(t, kfake.BrokerConfigs(map[string]string{"offsets.retention.minutes": "1440"}))
	topic(t, admin, "good", 1, 3)
	commit(t, admin, "billing", "good", 0)
	want(t, examine(t, url, nil, ""), "offsets.retention.minutes is 1440.", "kafka-offsets-expire")
}

func TestKafkaUnread(t *testing.T) {
	_, url, admin, client := startKafka(t)
	topic(t, admin, "orders", 1, 3)
	now := time.Now()
	produce(t, client, "orders", now.Add(-6*24*time.Hour), now.Add(-6*24*time.Hour), now)
	commit(t, admin, "billing", "orders", 2)
	want(t, examine(t, url, nil, ""), "")
	commit(t, admin, "billing", "orders", 1)
	want(t, examine(t, url, nil, ""), "warning kafka-unread-soon: Group billing is at offset 1 in partition 0 of orders, where messages", "kafka-unread-soon")
	var o kadm.Offsets
	o.AddOffset("orders", 0, 2, -1)
	if _, err := admin.DeleteRecords(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, url, nil, ""), "unsafe kafka-unread-dropped: Group billing is at offset 1 in partition 0 of orders, which begins at 2.", "kafka-unread-dropped")
}

func TestKafkaAgainstTheStore(t *testing.T) {
	_, url, admin, _ := startKafka(t)
	topic(t, admin, "other", 1, 1) // which no consumer of the store reads
	topic(t, admin, "week", 1, 3)
	topic(t, admin, "ever", 1, 3, "retention.ms", "-1")
	topic(t, admin, "states", 1, 3, "cleanup.policy", "compact")
	const day = 24 * time.Hour
	for _, test := range []struct {
		of            string
		keep          time.Duration
		what, finding string
	}{
		{"week", 8 * day, "", ""},
		{"week", 7 * day, "warning redelivery-outlives-keys: billing (kafka topic week group billing): messages can be delivered for 7 d 1 h", "redelivery-outlives-keys"},
		{"ever", 8 * day, "messages can be delivered for ever", "redelivery-outlives-keys"},
		{"week,states", 8 * day, "messages can be delivered for ever", "redelivery-outlives-keys"},
		{"week,ever", 0, "", ""}, // positions only
		{"week,gone", 0, "there is no topic gone", "source-missing"},
	} {
		at := fresh(t)
		register(t, at, "billing", "kafka topic "+test.of+" group billing", test.keep)
		var names []string
		if test.finding != "" {
			names = []string{test.finding}
		}
		want(t, examine(t, url, at, ""), test.what, names...)
	}
}

func TestKafkaAgainstPositions(t *testing.T) {
	_, url, admin, _ := startKafka(t)
	topic(t, admin, "orders", 2, 3)
	all, err := admin.Metadata(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	const none = "00000000000000000000000000000001"
	for _, test := range []struct {
		places        []string
		log           string
		what, finding string
	}{
		{nil, "", "", ""},
		{[]string{"orders/0", "orders/1"}, "orders#" + hexOf(all.Topics["orders"].ID), "", ""},
		{[]string{"orders/0"}, "orders", "billing (kafka topic orders group billing) has positions in 1 of 2 partitions of orders.", "kafka-partitions-added"},
		{[]string{"orders/0", "orders/1"}, "orders#" + none, "topic orders was deleted and created again", "kafka-topic-anew"},
	} {
		at := fresh(t)
		register(t, at, "billing", "kafka topic orders group billing", 0)
		for _, place := range test.places {
			if err := need[inbox.AdminStore](at).SetPosition(t.Context(), store.Position{Consumer: "billing", Partition: place, Log: test.log, Offset: 3}); err != nil {
				t.Fatal(err)
			}
		}
		var names []string
		if test.finding != "" {
			names = []string{test.finding}
		}
		want(t, examine(t, url, at, ""), test.what, names...)
	}
}

func hexOf(id kadm.TopicID) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for _, x := range id {
		b.WriteByte(digits[x>>4])
		b.WriteByte(digits[x&15])
	}
	return b.String()
}

// A right that is missing is told, and what can be seen is looked at.
func TestKafkaWithoutRights(t *testing.T) {
	cluster, url, admin, _ := startKafka(t)
	topic(t, admin, "single", 1, 1)
	cluster.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, of := range req.(*kmsg.DescribeConfigsRequest).Resources {
			resp.Resources = append(resp.Resources, kmsg.DescribeConfigsResponseResource{ErrorCode: kerr.TopicAuthorizationFailed.Code,
				ResourceType: of.ResourceType, ResourceName: of.ResourceName})
		}
		return resp, nil, true
	})
	r := examine(t, url, nil, "")
	want(t, r, "note not-checked: kafka-settings: TOPIC_AUTHORIZATION_FAILED", "kafka-replicas", "not-checked")
	if r.Unmade() != 1 {
		t.Errorf("%d checks were not made", r.Unmade())
	}
}

// The forms of the URL, on a cluster that wants a password.
func TestKafkaURLs(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser(mechanism, "ops", "s3cret@"))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		host := cluster.ListenAddrs()[0]
		t.Setenv("KAFKA_PASSWORD", "s3cret@")
		b, err := doctor.Dial(t.Context(), "kafka://ops:${KAFKA_PASSWORD}@"+host+"?sasl="+strings.ToLower(mechanism))
		if err != nil {
			t.Fatal(mechanism, err)
		}
		if b.String() != "kafka://"+host {
			t.Errorf("it is called %s", b)
		}
		b.Close()
		for rest, want := range map[string]string{"?sasl=" + strings.ToLower(mechanism): "cannot connect to kafka://", "?sasl=magic": "sasl is plain", "": "need ?sasl=",
			"?sasl=plain&x=1": `no parameter "x"`, "?sasl=plain&tls=yes": "tls is true or false"} {
			_, err := doctor.Dial(t.Context(), "kafka://ops:wr0ng@"+host+rest)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wr0ng") {
				t.Errorf("%q: %v, want %q", rest, err, want)
			}
		}
	}
}

func need[Capability any](t *target.Target) Capability {
	c, err := target.Need[Capability](t, "such thing")
	if err != nil {
		panic(err)
	}
	return c
}
