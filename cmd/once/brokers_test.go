package main

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/internal/fakesqs"
	"github.com/effectively-once/once/store"
)

// startNATS starts a server with the user ops and the streams good and memory.
func startNATS(t *testing.T) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		Username: "ops", Password: "s3cret@"})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	c, err := nats.Connect(s.ClientURL(), nats.UserInfo("ops", "s3cret@"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	js, err := jetstream.New(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, storage := range map[string]jetstream.StorageType{"good": jetstream.FileStorage, "memory": jetstream.MemoryStorage} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, Storage: storage}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestBrokerScripts(t *testing.T) {
	s := startNATS(t)
	service := new(fakesqs.Server)
	queues := httptest.NewServer(service)
	t.Cleanup(queues.Close)
	client := sqs.New(sqs.Options{Region: fakesqs.Region, BaseEndpoint: &queues.URL, Credentials: aws.AnonymousCredentials{}})
	if _, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("orders")}); err != nil {
		t.Fatal(err)
	}
	service.CreateTopic("news")
	hubs, err := fakeamqp.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hubs.Close)
	hubs.CreateHub("orders", 1)
	testscript.Run(t, testscript.Params{Dir: "testdata/brokers", RequireExplicitExec: true, Setup: func(e *testscript.Env) error {
		e.Setenv("SQS", queues.URL)
		e.Setenv("HUBS", hubs.ConnectionString())
		e.Setenv("HOST", s.Addr().String())
		e.Setenv("BROKER", "nats://ops:${NATS_PASSWORD}@"+s.Addr().String())
		e.Setenv("NATS_PASSWORD", "s3cret@")
		return at(e, "sqlite:shop.db")
	}})
}

// How long keys are kept is read from each database.
func TestDoctorReadsHowLongKeysAreKeptOnServers(t *testing.T) {
	for name, fresh := range map[string]func(testing.TB) string{
		"postgres":    freshPostgres,
		"partitioned": func(t testing.TB) string { return freshPostgres(t) + "&partition=24h" },
		"mariadb":     freshMariaDB,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, on := t.Context(), open(t, fresh(t))
			if err := on.Tables.Migrate(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := need[store.Registry](on).Register(ctx, store.Consumer{Name: "billing", Source: "nats stream good log of billing"}); err != nil {
				t.Fatal(err)
			}
			fence := once.Fence{Key: once.Key{Operation: "billing", ID: "1"}, Owner: [16]byte{1}, Attempt: 1}
			if _, err := on.Store.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: fence.Owner}, Lease: time.Hour}); err != nil {
				t.Fatal(err)
			}
			const keep = 48 * time.Hour
			if err := on.Store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: keep, KeepKey: keep}); err != nil {
				t.Fatal(err)
			}
			b, err := doctor.Dial(ctx, "nats://ops:s3cret%40@"+startNATS(t).Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			r, err := doctor.ExamineBroker(ctx, b, on, "")
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Findings) != 1 || r.Findings[0].Name != "redelivery-outlives-keys" || !strings.Contains(r.Findings[0].What, "and keys are kept for 2 d (1 key was checked)") {
				t.Errorf("found %+v", r.Findings)
			}
		})
	}
}
