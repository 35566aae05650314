package doctor_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/eventhubsbroker"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/store"
)

// startHubs starts an imitation of Event Hubs and returns the URL of its namespace.
func startHubs(t *testing.T) (hubs *fakeamqp.Server, from string) {
	t.Helper()
	hubs, err := fakeamqp.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hubs.Close)
	t.Setenv("HUBS_KEY", "c2VjcmV0/+==")
	return hubs, "eventhubs://k:${HUBS_KEY}@" + hubs.Addr()
}

func TestEventHubsAreExamined(t *testing.T) {
	hubs, from := startHubs(t)
	hubs.CreateHub("orders", 1)
	hubs.CreateHub("returns", 2)
	for _, c := range []struct {
		path, only string
		want       []string
	}{
		{"", "", []string{"eventhubs-not-listed"}},
		{"/orders", "", []string{"eventhubs-one-partition", "eventhubs-retention-not-seen"}},
		{"/returns", "", []string{"eventhubs-retention-not-seen"}},
		{"/orders,returns,gone", "r*", []string{"eventhubs-retention-not-seen"}},
		{"/returns,gone", "", []string{"eventhubs-hub-missing", "eventhubs-retention-not-seen"}},
	} {
		wantFound(t, c.path+" "+c.only, from+c.path+"?emulator=true", nil, c.only, c.want...)
	}
	on := withReader(t, "eventhubs hub returns group $Default", nil, 0)
	wantFound(t, "a consumer's", from+"?emulator=true", on, "", "eventhubs-retention-not-seen")
	wantFound(t, "a consumer's and others", from+"/orders?emulator=true", on, "", "eventhubs-one-partition", "eventhubs-retention-not-seen")
	hubs.DeleteHub("returns")
	wantFound(t, "deleted", from+"?emulator=true", on, "", "source-missing")
	for _, wrong := range []string{"eventhubs://k:v@a,b", "eventhubs://k@shop/orders", "eventhubs://k:v@shop/orders/billing", "eventhubs://k:v@shop/orders?x=1",
		"eventhubs://k:v@shop/orders?emulator=1", "eventhubs://shop/orders?emulator=true", "eventhubs://k:v;w@shop/orders"} {
		if _, err := doctor.Dial(t.Context(), wrong); !errors.Is(err, doctor.ErrBroker) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

func TestEventHubsAgainstPositions(t *testing.T) {
	hubs, from := startHubs(t)
	from += "?emulator=true"
	hubs.CreateHub("orders", 1)
	b, err := eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: hubs.ConnectionString()})
	if err != nil {
		t.Fatal(err)
	}
	source := b.Log("orders", "$Default", fresh(t).Store)
	// at returns a database whose consumer is at an offset. An empty log means that
	// it has handled nothing.
	at := func(log string, offset int64, partitions ...string) *target.Target {
		on := withReader(t, source.Name(), nil, 0)
		for _, id := range partitions {
			if err := need[inbox.AdminStore](on).SetPosition(t.Context(), store.Position{Consumer: "billing", Partition: "orders/" + id, Log: log, Offset: offset}); err != nil {
				t.Fatal(err)
			}
		}
		return on
	}
	publish := func(n int) {
		t.Helper()
		p := b.Publisher()
		defer p.Close()
		for i := range n {
			if errs := p.Publish(t.Context(), []*broker.Message{{ID: fmt.Sprint(i), Topic: "orders"}}); errs != nil {
				t.Fatal(errs)
			}
		}
	}
	log := func() string {
		t.Helper()
		facts, err := source.(broker.Located).Location(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		born, err := time.Parse("20060102T150405.000000000Z", facts["created"])
		if err != nil {
			t.Fatal(err)
		}
		return "orders#" + born.Format(time.RFC3339Nano)
	}
	always := []string{"eventhubs-one-partition", "eventhubs-retention-not-seen"}
	wants := func(what string, on *target.Target, names ...string) {
		t.Helper()
		wantFound(t, what, from, on, "", append(names, always...)...)
	}
	is := log()
	wants("nothing yet", at("", 0, "0"))
	publish(5)
	wants("in the middle", at(is, 2, "0"))
	wants("at the end", at(is, 4, "0"))
	hubs.TrimHub("orders", 0, 4)
	wants("before the first", at(is, 3, "0"))
	wants("dropped", at(is, 2, "0"), "eventhubs-unread-dropped")
	wants("nothing handled", at("", 0, "0"))
	hubs.TrimHub("orders", 0, 5)
	wants("before the end of an empty partition", at(is, 4, "0"))
	wants("dropped from an empty partition", at(is, 3, "0"), "eventhubs-unread-dropped")
	publish(2)
	hubs.TruncateHub("orders", 0, 6)
	wants("the end", at(is, 5, "0"))
	wants("lost", at(is, 6, "0"), "eventhubs-end-lost")
	hubs.AddPartition("orders")
	always = always[1:]
	wants("not read", at("", 0, "0"), "eventhubs-partitions-added")
	wants("read", at(is, 5, "0", "1"), "eventhubs-end-lost") // the new one is empty
	hubs.CreateHub("orders", 2)
	wants("anew", at(is, 5, "0", "1"), "eventhubs-hub-anew")
}
