package target

import (
	"context"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/api/option"
)

// NewPubSub returns a client of Google Cloud Pub/Sub, with the credentials of the
// environment or, if PUBSUB_EMULATOR_HOST is set, of that server. An empty
// endpoint is the global one. It does not connect.
func NewPubSub(ctx context.Context, project, endpoint string) (*pubsub.Client, error) {
	var with []option.ClientOption
	if endpoint != "" {
		with = append(with, option.WithEndpoint(endpoint))
	}
	return pubsub.NewClient(ctx, project, with...)
}
