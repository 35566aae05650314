package redis

import (
	"context"
	"time"
)

type (
	StatusCmd struct{}
	IntCmd    struct{}
	StringCmd struct{}
)

type cmdable func()

func (cmdable) Set(ctx context.Context, key string, value any, d time.Duration) *StatusCmd { panic(0) }
func (cmdable) Get(ctx context.Context, key string) *StringCmd                             { panic(0) }
func (cmdable) Del(ctx context.Context, keys ...string) *IntCmd                            { panic(0) }
func (cmdable) Publish(ctx context.Context, channel string, m any) *IntCmd                 { panic(0) }

type Client struct{ cmdable }

type Pipeliner interface {
	Set(ctx context.Context, key string, value any, d time.Duration) *StatusCmd
	Publish(ctx context.Context, channel string, m any) *IntCmd
	Exec(ctx context.Context) ([]any, error)
}

func (*Client) Pipeline() Pipeliner { panic(0) }
