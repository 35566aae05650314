package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/redis/go-redis/v9"
)

// HearOutbox begins to listen to the stream that transactions with messages write
// to. It takes a connection of its own, besides those of the client.
func (s *Store) HearOutbox(ctx context.Context) (store.Ear, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	var client *redis.Client
	switch c := s.client.(type) {
	case *redis.Client:
		client = c
	case *redis.ClusterClient:
		node, err := c.MasterForKey(ctx, s.bellKey())
		if err != nil {
			return nil, fmt.Errorf("redisstore: listen for messages: %w", err)
		}
		client = node
	default:
		return nil, fmt.Errorf("redisstore: listen for messages with a %T: %w", c, errors.ErrUnsupported)
	}
	o := *client.Options()
	o.PoolSize, o.MinIdleConns, o.MaxRetries = 1, 0, -1
	e := &ear{client: redis.NewClient(&o), bell: s.bellKey(), rings: make(chan struct{}, 1), ended: make(chan struct{})}
	last, err := e.last(ctx)
	if err != nil {
		_ = e.client.Close()
		return nil, fmt.Errorf("redisstore: listen for messages: %w", err)
	}
	listening, stop := context.WithCancel(context.Background())
	e.stop = stop
	go e.listen(listening, last)
	return e, nil
}

// ear reads the stream.
type ear struct {
	client *redis.Client
	bell   string
	stop   func()
	rings  chan struct{}
	ended  chan struct{} // closed after err is set
	err    error
}

// patience is how long a read waits before it asks whether the server is still
// the one to listen to.
const patience = 5 * time.Second

func (e *ear) listen(ctx context.Context, last string) {
	defer close(e.ended)
	for ctx.Err() == nil {
		read, err := e.client.XRead(ctx, &redis.XReadArgs{Streams: []string{e.bell, last}, Block: patience}).Result()
		switch {
		case errors.Is(err, redis.Nil):
			if e.err = e.check(ctx, last); e.err != nil {
				return
			}
		case err != nil:
			e.err = err
			return
		default:
			for _, stream := range read {
				if n := len(stream.Messages); n > 0 {
					last = stream.Messages[n-1].ID
				}
			}
			select {
			case e.rings <- struct{}{}:
			default:
			}
		}
	}
}

var errReplaced = errors.New("redisstore: the stream that wakes relays was replaced")

// check returns an error if the server has become a replica, or if the stream is
// another one, in which new entries may seem old.
func (e *ear) check(ctx context.Context, last string) error {
	is, err := e.last(ctx)
	if err == nil && compareIDs(is, last) < 0 {
		err = errReplaced
	}
	return err
}

// last returns the last entry of the stream. A replica returns an error, because
// PERSIST, which changes nothing, is a write.
func (e *ear) last(ctx context.Context) (string, error) {
	if err := e.client.Persist(ctx, e.bell).Err(); err != nil {
		return "", err
	}
	entries, err := e.client.XRevRangeN(ctx, e.bell, "+", "-", 1).Result()
	if err != nil || len(entries) == 0 {
		return "0-0", err
	}
	return entries[0].ID, nil
}

func compareIDs(a, b string) int {
	parts := func(id string) (ms, n uint64) {
		first, second, _ := strings.Cut(id, "-")
		ms, _ = strconv.ParseUint(first, 10, 64)
		n, _ = strconv.ParseUint(second, 10, 64)
		return ms, n
	}
	ams, an := parts(a)
	bms, bn := parts(b)
	return cmp.Or(cmp.Compare(ams, bms), cmp.Compare(an, bn))
}

// Wait returns nil when messages may have been committed.
func (e *ear) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-e.rings:
		return nil
	case <-e.ended:
		return e.err
	}
}

// Far returns true.
func (e *ear) Far() bool { return true }

// Close ends the listening.
func (e *ear) Close() {
	e.stop()
	_ = e.client.Close()
	<-e.ended
}
