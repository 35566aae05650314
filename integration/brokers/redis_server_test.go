//go:build linux

package brokers_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/redis/go-redis/v9"
)

// redisClaimAfter is short, so that tests of dead sessions are.
const redisClaimAfter = 2 * time.Second

// redisServer is a private Redis, which has each write on disk before it answers.
type redisServer struct {
	*server.Instance
	client *redis.Client
	names  atomic.Int64
}

func startRedis(t *testing.T) *redisServer {
	t.Helper()
	server.Need(t, server.Redis)
	i, err := server.StartRedis(t.Context())
	proof.Must(t, err)
	t.Cleanup(func() {
		if err := i.Stop(); err != nil {
			t.Error(err)
		}
	})
	o, err := redis.ParseURL(i.DSN())
	proof.Must(t, err)
	r := &redisServer{Instance: i, client: redis.NewClient(o)}
	t.Cleanup(func() { _ = r.client.Close() })
	return r
}

// restart kills the server and starts it.
func (r *redisServer) restart(tb testing.TB) {
	tb.Helper()
	proof.Must(tb, r.Kill())
	proof.Must(tb, r.Restart(context.WithoutCancel(tb.Context())))
}

// redisPlace is a stream with a group, and a stream for dead letters.
type redisPlace struct {
	client       redis.UniversalClient
	broker       *redisbroker.Broker
	publisher    broker.Publisher
	source       broker.Source
	stream, dead string
}

func (r *redisServer) place(tb testing.TB, o redisbroker.Options) *redisPlace {
	tb.Helper()
	return redisPlaceAt(tb, r.client, fmt.Sprintf("once-%d", r.names.Add(1)), o)
}

// redisPlaceAt creates a place. The group is named billing.
func redisPlaceAt(tb testing.TB, client redis.UniversalClient, stream string, o redisbroker.Options) *redisPlace {
	tb.Helper()
	p := &redisPlace{client: client, stream: stream, dead: stream + ".dead"}
	o.DeadLetter = p.dead
	if o.ClaimAfter == 0 {
		o.ClaimAfter = redisClaimAfter
	}
	p.broker = redisbroker.New(client, &o)
	p.publisher = p.broker.Publisher()
	tb.Cleanup(func() { _ = p.publisher.Close() })
	p.source = p.broker.Group(stream, "billing")
	proof.Must(tb, p.broker.DeclareGroup(proof.Soon(tb), stream, "billing"))
	return p
}

func (p *redisPlace) harnessPlace() brokertest.Place {
	return brokertest.Place{Publisher: p.publisher, Source: p.source, Topic: p.stream, DeadLetters: p.letters}
}

// letters returns the dead letters, read by a group of their own.
func (p *redisPlace) letters(tb testing.TB) (ms []*broker.Message) {
	tb.Helper()
	proof.Must(tb, p.broker.DeclareGroup(proof.Soon(tb), p.dead, "test"))
	s := openSession(tb, redisbroker.New(p.client, nil).Group(p.dead, "test"), 1000)
	defer s.Close(proof.Soon(tb))
	return receiveAll(tb, s)
}

func (p *redisPlace) publish(tb testing.TB, ms ...*broker.Message) {
	tb.Helper()
	publish(tb, p.publisher, ms...)
}

func (p *redisPlace) messages(n int) (ms []*broker.Message) {
	for i := range n {
		ms = append(ms, &broker.Message{ID: fmt.Sprintf("%s-%d", p.stream, i), Topic: p.stream, Body: []byte(fmt.Sprint(i))})
	}
	return ms
}
