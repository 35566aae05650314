package grpconce

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"
)

// KeyMetadata names a call: all calls of a caller with one key are one.
const KeyMetadata = "idempotency-key"

// ReplayedMetadata is set to true in the header of an answer that was given before.
const ReplayedMetadata = "idempotent-replayed"

// maxKey is how many bytes a key may have.
const maxKey = 255

// incomingKey is the key that a client has sent, and whether it has sent any.
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

// checkKey refuses spaces at the ends as well, which do not survive every proxy.
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

// Replayed reports whether the header of an answer, as grpc.Header gets it, says that it was given before.
func Replayed(header metadata.MD) bool {
	values := header.Get(ReplayedMetadata)
	return len(values) == 1 && values[0] == "true"
}
