package main

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"
)

// TestBrokerScripts runs once doctor on a NATS of its own, with the user ops and the streams good and memory.
func TestBrokerScripts(t *testing.T) {
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
	testscript.Run(t, testscript.Params{Dir: "testdata/brokers", RequireExplicitExec: true, Setup: func(e *testscript.Env) error {
		e.Setenv("HOST", s.Addr().String())
		e.Setenv("BROKER", "nats://ops:${NATS_PASSWORD}@"+s.Addr().String())
		e.Setenv("NATS_PASSWORD", "s3cret@")
		return at(e, "sqlite:shop.db")
	}})
}
