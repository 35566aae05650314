package doctor

import (
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

func TestSettingsByWhichPubSubLosesMessages(t *testing.T) {
	const dead = "projects/shop/topics/dead"
	policy := &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: 5}
	for name, c := range map[string]struct {
		change func(*pubsubpb.Subscription)
		others []*pubsubpb.Subscription
		want   []string
	}{
		"as declared":        {func(*pubsubpb.Subscription) {}, nil, nil},
		"expires by default": {func(sub *pubsubpb.Subscription) { sub.ExpirationPolicy = nil }, nil, []string{"pubsub-expires"}},
		"expires": {func(sub *pubsubpb.Subscription) {
			sub.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(24 * time.Hour)}
		}, nil, []string{"pubsub-expires"}},
		"unordered":           {func(sub *pubsubpb.Subscription) { sub.EnableMessageOrdering = false }, nil, []string{"pubsub-unordered"}},
		"topic deleted":       {func(sub *pubsubpb.Subscription) { sub.Topic = "_deleted-topic_" }, nil, []string{"pubsub-cut-off"}},
		"detached":            {func(sub *pubsubpb.Subscription) { sub.Detached = true }, nil, []string{"pubsub-cut-off"}},
		"dead letters":        {func(sub *pubsubpb.Subscription) { sub.DeadLetterPolicy = policy }, []*pubsubpb.Subscription{{Topic: dead}}, []string{"pubsub-delivery-limit"}},
		"dead letters nobody": {func(sub *pubsubpb.Subscription) { sub.DeadLetterPolicy = policy }, nil, []string{"pubsub-dead-letters-lost", "pubsub-delivery-limit"}},
	} {
		sub := &pubsubpb.Subscription{Name: "projects/shop/subscriptions/billing", Topic: "projects/shop/topics/orders",
			EnableMessageOrdering: true, ExpirationPolicy: new(pubsubpb.ExpirationPolicy)}
		c.change(sub)
		if got := namesOf(func(s *survey) { pubsubLoses(s, sub, c.others) }); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %v, want %v", name, got, c.want)
		}
	}
}

func TestPubSubIsExamined(t *testing.T) {
	running := pstest.NewServer()
	t.Cleanup(func() { _ = running.Close() })
	t.Setenv("PUBSUB_EMULATOR_HOST", running.Addr)
	client, err := target.NewPubSub(t.Context(), "shop", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	b := pubsubbroker.New(client, &pubsubbroker.Options{Unordered: true})
	if err := b.DeclareSubscription(t.Context(), "orders", "billing", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/shop/topics/lonely"}); err != nil {
		t.Fatal(err)
	}
	d, err := Dial(t.Context(), "pubsub://shop")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for only, want := range map[string][]string{
		"":        {"pubsub-unordered", "pubsub-nobody-subscribes"},
		"billing": {"pubsub-unordered"},
		"lon*":    {"pubsub-nobody-subscribes"},
	} {
		r, err := ExamineBroker(t.Context(), d, nil, only)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range r.Findings {
			got = append(got, f.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: found %v, want %v: %+v", only, got, want, r.Findings)
		}
	}
	for _, wrong := range []string{"pubsub://a,b", "pubsub://user@shop", "pubsub://shop/x", "pubsub://shop?x=1"} {
		if _, err := Dial(t.Context(), wrong); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}
