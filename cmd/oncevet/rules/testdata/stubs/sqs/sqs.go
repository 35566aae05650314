package sqs

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

type Client struct{}

type (
	SendMessageInput   struct{ MessageBody *string }
	SendMessageOutput  struct{}
	DeleteMessageInput struct{ ReceiptHandle *string }
)

type DeleteMessageOutput struct{ Message types.Message }

func (*Client) SendMessage(ctx context.Context, in *SendMessageInput, opts ...func(*int)) (*SendMessageOutput, error) {
	panic(0)
}

func (*Client) DeleteMessage(ctx context.Context, in *DeleteMessageInput, opts ...func(*int)) (*DeleteMessageOutput, error) {
	panic(0)
}
