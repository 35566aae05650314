package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/natsstore"
)

// natsStages hold the contests of the store in NATS, on a server in this process
// that syncs each write.
func natsStages() (stages []stage) {
	for _, contest := range []struct {
		name     string
		variants func(*natsBench) []variant
	}{
		{"a duplicate", (*natsBench).duplicates},
		{"claim and complete", (*natsBench).works},
	} {
		stages = append(stages, stage{name: contest.name + ", NATS", loads: workers(1, 8),
			open: func(ctx context.Context, _ *bench) (*arena, error) { return openNATS(ctx, contest.variants) }})
	}
	return stages
}

type natsBench struct {
	js    jetstream.JetStream
	bare  jetstream.KeyValue
	store *natsstore.Store
}

func openNATS(ctx context.Context, variants func(*natsBench) []variant) (*arena, error) {
	dir, err := os.MkdirTemp("", "once-bench-nats")
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		SyncAlways: true, NoLog: true, NoSigs: true})
	if err != nil {
		return nil, err
	}
	go s.Start()
	b := new(natsBench)
	end := func() {
		if b.js != nil {
			b.js.Conn().Close()
		}
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
	if err = b.open(ctx, s); err != nil {
		end()
		return nil, err
	}
	return &arena{close: end, contest: func(load) contest { return contest{unit: "piece of work", variants: variants(b)} }}, nil
}

func (b *natsBench) open(ctx context.Context, s *server.Server) error {
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("the NATS server takes no connections")
	}
	connection, err := nats.Connect(s.ClientURL())
	if err != nil {
		return err
	}
	if b.js, err = jetstream.New(connection); err != nil {
		return err
	}
	b.store = natsstore.New(b.js, nil)
	if err := b.store.Migrate(ctx); err != nil {
		return err
	}
	// The leader answers reads, as for the store.
	bare := b.store.Schema()
	bare.Name, bare.Subjects = "KV_bare", []string{"$KV.bare.>"}
	if _, err := b.js.CreateStream(ctx, bare); err != nil {
		return err
	}
	if b.bare, err = b.js.KeyValue(ctx, "bare"); err != nil {
		return err
	}
	return seedDuplicates(ctx, func(ctx context.Context, id string) error {
		_, err := b.bare.Create(ctx, id, []byte(answer300))
		return errors.Join(err, b.do(ctx, id))
	})
}

var natsPay = &once.Operation[string]{Name: "pay", OnUnknown: once.Resend}

func (b *natsBench) duplicates() []variant {
	return []variant{
		repeated("Get", func(ctx context.Context) error { _, err := b.bare.Get(ctx, someDuplicate()); return err }),
		repeated("Do, duplicate", func(ctx context.Context) error { return b.do(ctx, someDuplicate()) }),
	}
}

func (b *natsBench) works() []variant {
	return []variant{
		repeated("Create and Update", func(ctx context.Context) error {
			id := newID()
			revision, err := b.bare.Create(ctx, id, []byte(answer300))
			if err == nil {
				_, err = b.bare.Update(ctx, id, []byte(answer300), revision)
			}
			return err
		}),
		repeated("Do", func(ctx context.Context) error { return b.do(ctx, newID()) }),
	}
}

func (b *natsBench) do(ctx context.Context, id string) error {
	_, err := once.Do(ctx, b.store, natsPay.For(id), func(context.Context, once.Key) (string, error) { return answer300, nil })
	return err
}
