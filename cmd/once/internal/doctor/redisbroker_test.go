package doctor

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/internal/testenv"
)

// namesOf returns the names of what a check finds.
func namesOf(look func(*survey)) (names []string) {
	r := Report{}
	look(&survey{report: &r, merged: make(map[Finding]int)})
	for _, f := range r.Findings {
		names = append(names, f.Name)
	}
	return names
}

func TestSettingsByWhichRedisLosesMessages(t *testing.T) {
	for want, change := range map[string]map[string]string{
		"":                  {},
		"redis-evicts":      {"maxmemory_policy": "allkeys-lru"},
		"redis-append-only": {"aof_enabled": "0"},
		"redis-memory":      {"maxmemory": "1000", "used_memory": "950"},
		"redis-failover":    {"connected_slaves": "2"},
	} {
		fields := map[string]string{"maxmemory_policy": "volatile-lru", "aof_enabled": "1", "maxmemory": "1000", "used_memory": "100"}
		for name, value := range change {
			fields[name] = value
		}
		got := namesOf(func(s *survey) { redisLoses(s, []redisInfo{{"host:6379", fields}}) })
		if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("%v: found %v", change, got)
		}
	}
}

func TestConsumersOfRedisThatAreGone(t *testing.T) {
	heard := redis.XInfoConsumer{Name: "once/a/1/x", Pending: 1, Idle: time.Second}
	gone := redis.XInfoConsumer{Name: "once/b/1/x", Pending: 3, Idle: time.Hour}
	returned := redis.XInfoConsumer{Name: redisReturned, Pending: 1, Idle: time.Hour}
	for name, c := range map[string]struct {
		consumers []redis.XInfoConsumer
		want      []string
	}{
		"all are heard":                       {[]redis.XInfoConsumer{heard}, nil},
		"one has died":                        {[]redis.XInfoConsumer{heard, gone}, []string{"redis-consumer-gone"}},
		"one has died and left nothing":       {[]redis.XInfoConsumer{heard, {Name: "x", Idle: time.Hour}}, nil},
		"what was returned is soon claimed":   {[]redis.XInfoConsumer{heard, returned}, nil},
		"what was returned is for nobody":     {[]redis.XInfoConsumer{returned}, []string{"redis-consumer-gone", "redis-nobody-reads"}},
		"messages wait, and nobody is there":  {nil, []string{"redis-nobody-reads"}},
		"messages wait, and nobody was heard": {[]redis.XInfoConsumer{{Name: "x", Idle: time.Hour}}, []string{"redis-nobody-reads"}},
	} {
		if got := namesOf(func(s *survey) { redisConsumers(s, "Group", &redis.XInfoGroup{Lag: 1}, c.consumers) }); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %v, want %v", name, got, c.want)
		}
	}
}

// redisStream returns a broker on the test server, a client of it, and the name of
// a stream with a group.
func redisStream(t *testing.T) (b *redisbroker.Broker, client *redis.Client, stream string) {
	t.Helper()
	o, err := redis.ParseURL(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	client = redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	config, err := client.ConfigGet(t.Context(), "dir").Result()
	if err != nil {
		t.Fatal(err)
	}
	testenv.CheckRedis(t, config)
	b, stream = redisbroker.New(client, nil), "doctor-"+rand.Text()
	if err := b.DeclareGroup(t.Context(), stream, "billing"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Del(context.WithoutCancel(t.Context()), stream) })
	return b, client, stream
}

func TestMessagesThatRedisDropped(t *testing.T) {
	b, client, stream := redisStream(t)
	publish := func(ids ...string) {
		t.Helper()
		p := b.Publisher()
		defer p.Close()
		for _, id := range ids {
			if errs := p.Publish(t.Context(), []*broker.Message{{ID: id, Topic: stream}}); errs != nil {
				t.Fatal(errs)
			}
		}
	}
	wantDropped := func(want ...string) {
		t.Helper()
		d, err := Dial(t.Context(), testenv.Redis(t))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		r, err := ExamineBroker(t.Context(), d, nil, stream)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range r.Findings {
			if f.Severity == Unsafe || f.Name == notChecked {
				got = append(got, f.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %v, want %v: %+v", got, want, r.Findings)
		}
	}
	read := func(n int64) {
		t.Helper()
		err := client.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "billing", Consumer: "c", Streams: []string{stream, ">"}, Count: n}).Err()
		if err != nil {
			t.Fatal(err)
		}
	}
	trim := func(n int64) {
		t.Helper()
		if err := client.XTrimMaxLen(t.Context(), stream, n).Err(); err != nil {
			t.Fatal(err)
		}
	}
	publish("1", "2", "3", "4")
	wantDropped()
	read(2)
	wantDropped()
	trim(3)
	wantDropped("redis-pending-dropped")
	trim(1)
	wantDropped("redis-pending-dropped", "redis-unread-dropped")
}
