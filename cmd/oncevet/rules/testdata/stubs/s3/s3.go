package s3

import "context"

type Client struct{}

type (
	PutObjectInput  struct{ Key *string }
	PutObjectOutput struct{}
	GetObjectInput  struct{ Key *string }
	GetObjectOutput struct{}
)

func (*Client) PutObject(ctx context.Context, in *PutObjectInput, opts ...func(*int)) (*PutObjectOutput, error) {
	panic(0)
}

func (*Client) GetObject(ctx context.Context, in *GetObjectInput, opts ...func(*int)) (*GetObjectOutput, error) {
	panic(0)
}
