package grpconce

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"
)

// KeyMetadata is the metadata with the key of a call. All calls of a caller with
// the same key count as one.
const KeyMetadata = "idempotency-key"

// ReplayedMetadata is set to true in the header of a replayed response.
const ReplayedMetadata = "idempotent-replayed"

// maxKey is the maximum length of a key in bytes.
const maxKey = 255

// incomingKey returns the key that the client sent, and whether it sent any.
func incomingKey(ctx context.Context) (key string, sent bool, err error) {
	values := metadata.ValueFromIncomingContext(ctx, KeyMetadata)
	switch len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, checkKey(values[0])
	default:
		return "", true, errors.New("the key was sent more than once: send one")
	}
}

// checkKey also rejects spaces at either end, which some proxies remove.
func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty")
	case len(key) > maxKey:
		return fmt.Errorf("the key has %d bytes, at most %d are allowed", len(key), maxKey)
	case strings.TrimSpace(key) != key:
		return errors.New("the key begins or ends with a space")
	}
	if at := strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > '~' }); at >= 0 {
		return fmt.Errorf("the key has a character at byte %d that is not printable ASCII", at)
	}
	return nil
}

// Replayed reports whether the server marked a response as replayed. header is
// what [google.golang.org/grpc.Header] receives.
func Replayed(header metadata.MD) bool {
	values := header.Get(ReplayedMetadata)
	return len(values) == 1 && values[0] == "true"
}
