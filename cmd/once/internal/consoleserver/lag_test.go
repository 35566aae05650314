package consoleserver

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/eventhubsbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
)

// RabbitMQ tells where it is: a queue of the same name at another cluster is not
// asked about, even if that cluster is not known here.
func TestTheLagOfAQueueIsThatAtItsCluster(t *testing.T) {
	url := testenv.RabbitMQ(t)
	connection, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	name := "lag-" + rand.Text()
	if _, err := channel.QueueDeclare(name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	defer channel.QueueDelete(name, false, false, false)
	b := rabbitbroker.New(url, nil)
	p := b.Publisher("")
	defer p.Close()
	if errs := p.Publish(t.Context(), []*broker.Message{{ID: "1", Topic: name, Body: []byte("x")}, {ID: "2", Topic: name, Body: []byte("x")}}); errs != nil {
		t.Fatal(errs)
	}
	source := b.Queue(name)
	facts, err := source.(broker.Located).Location(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, _ := secret.With(t.Context())
	from, err := doctor.OpenSources(ctx, []string{url})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	ask := LagOf(ctx, from)
	for range 2 {
		if lag, err := ask(t.Context(), console.LagQuestion{Source: store.SourceText(source.Name(), facts)}); err != nil || lag.Messages != 2 {
			t.Errorf("%+v, %v", lag, err)
		}
	}
	facts["cluster"] = "another"
	if lag, err := ask(t.Context(), console.LagQuestion{Source: store.SourceText(source.Name(), facts)}); !errors.Is(err, console.ErrLagUnknown) {
		t.Errorf("at another cluster: %+v, %v", lag, err)
	}
}

// askAt returns what asks the broker of a URL.
func askAt(t *testing.T, from string) Lag {
	t.Helper()
	ctx, _ := secret.With(t.Context())
	sources, err := doctor.OpenSources(ctx, []string{from})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sources.Close)
	return LagOf(ctx, sources)
}

const key = "c2VjcmV0" // of a namespace

func startAzure(t *testing.T) *fakeamqp.Server {
	t.Helper()
	s, err := fakeamqp.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// A hub does not know how far its consumer is, and the database does.
func TestTheLagOfAHubIsThatAfterPositions(t *testing.T) {
	hubs := startAzure(t)
	hubs.CreateHub("orders", 1)
	b, err := eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: hubs.ConnectionString()})
	if err != nil {
		t.Fatal(err)
	}
	p := b.Publisher()
	defer p.Close()
	if errs := p.Publish(t.Context(), []*broker.Message{{ID: "1", Topic: "orders"}, {ID: "2", Topic: "orders"}, {ID: "3", Topic: "orders"}}); errs != nil {
		t.Fatal(errs)
	}
	source := b.Log("orders", "$Default", nil)
	facts, err := source.(broker.Located).Location(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := askAt(t, "eventhubs://k:"+key+"@"+hubs.Addr()+"?emulator=true")
	after := func(positions ...store.Position) console.LagQuestion {
		return console.LagQuestion{Source: store.SourceText(source.Name(), facts),
			Positions: func(context.Context) ([]store.Position, error) { return positions, nil }}
	}
	if lag, err := ask(t.Context(), after()); err != nil || lag.Messages != 3 {
		t.Errorf("nothing was handled: %+v, %v", lag, err)
	}
	if lag, err := ask(t.Context(), after(store.Position{Partition: "orders/0"})); err != nil || lag.Messages != 3 {
		t.Errorf("nothing was handled by a session: %+v, %v", lag, err)
	}
	if lag, err := ask(t.Context(), after(store.Position{Partition: "orders/0", Log: "orders#earlier", Offset: 2})); err == nil {
		t.Errorf("a position of another hub: %+v", lag)
	}
	facts["created"] = "earlier"
	if lag, err := ask(t.Context(), after()); !errors.Is(err, console.ErrLagUnknown) {
		t.Errorf("another hub: %+v, %v", lag, err)
	}
}

// Who may not ask learns which right it takes, and not that there is nothing.
func TestTheLagOfServiceBusNeedsARight(t *testing.T) {
	bus := startAzure(t)
	bus.CreateQueue("orders", fakeamqp.QueueOptions{})
	client, err := azservicebus.NewClientFromConnectionString(bus.ConnectionString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	p := servicebusbroker.New(client, nil).Publisher()
	defer p.Close()
	if errs := p.Publish(t.Context(), []*broker.Message{{ID: "1", Topic: "orders"}, {ID: "2", Topic: "orders"}}); errs != nil {
		t.Fatal(errs)
	}
	for _, denies := range []bool{false, true} {
		management := httptest.NewServer(&fakeamqp.Management{Server: bus, Denies: denies})
		defer management.Close()
		ask := askAt(t, "servicebus://k:"+key+"@shop.servicebus.windows.net?endpoint="+url.QueryEscape(management.URL))
		lag, err := ask(t.Context(), console.LagQuestion{Source: "servicebus queue orders"})
		switch {
		case !denies && (err != nil || lag.Messages != 2):
			t.Errorf("%+v, %v", lag, err)
		case denies && (err == nil || !strings.Contains(err.Error(), "Manage") || strings.Contains(err.Error(), key)):
			t.Errorf("without the right: %+v, %v", lag, err)
		}
	}
}
