package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/redis/go-redis/v9"
)

// waiting answers WAITAOF, which not every server knows.
type waiting struct{ answer []int64 }

func (w *waiting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *waiting) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (w *waiting) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		cmds[1].(*redis.IntSliceCmd).SetVal(w.answer)
		return nil
	}
}

func TestTooFewConfirmations(t *testing.T) {
	for _, c := range []struct {
		answer []int64
		ok     bool
	}{
		{[]int64{1, 2}, true},
		{[]int64{1, 3}, true},
		{[]int64{0, 2}, false},
		{[]int64{1, 1}, false},
		{nil, false},
	} {
		client := redis.NewClient(new(redis.Options))
		client.AddHook(&waiting{c.answer})
		s := New(client, &Options{Replicas: 2, Synced: true})
		if err := s.run(t.Context(), s.scripts.get, s.keys([16]byte{})).Err(); (err == nil) != c.ok {
			t.Errorf("after the answer %v, the error is %v", c.answer, err)
		}
		_ = client.Close()
	}
}

func TestInvalidConfirmations(t *testing.T) {
	client := redis.NewClient(&redis.Options{ReadTimeout: time.Second})
	defer client.Close()
	for _, o := range []*Options{
		{Replicas: -1},
		{Replicas: 1, ConfirmTimeout: time.Microsecond},
		{Replicas: 1, ConfirmTimeout: -1},
		{Synced: true, ConfirmTimeout: time.Second},
	} {
		if _, err := New(client, o).Get(t.Context(), once.Key{Operation: "pay", ID: "1"}); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("with %+v, Get returned %v", o, err)
		}
	}
}
