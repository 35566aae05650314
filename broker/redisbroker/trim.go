package redisbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
)

// Trim deletes entries of a stream that are older than keep and that all groups
// have acknowledged, and returns how many. It deletes nothing from the first
// entry on that is pending or was not delivered in any group. The groups are all
// that read the stream: if one of them does not exist, it has not begun, and if
// the stream has one that is not named, nobody may know it. Then Trim deletes
// nothing and returns an error.
//
// Never trim a stream with MAXLEN: it deletes entries that nobody has handled.
func (b *Broker) Trim(ctx context.Context, stream string, keep time.Duration, groups ...string) (int64, error) {
	if len(groups) == 0 || keep < 0 {
		return 0, fmt.Errorf("%w: trimming needs the groups of the stream %q, and a time that is not negative", broker.ErrInvalid, stream)
	}
	args := []any{keep.Milliseconds()}
	for _, group := range groups {
		if err := checkNames(stream, group); err != nil {
			return 0, err
		}
		args = append(args, group)
	}
	reply, err := trimStream.Run(ctx, b.client, []string{stream}, args...).Result()
	if err != nil {
		return 0, fmt.Errorf("redisbroker: trim the stream %q: %w", stream, err)
	}
	if n, ok := reply.(int64); ok {
		return n, nil
	}
	refused, err := parseStrings(reply)
	switch {
	case err != nil || len(refused) != 2:
		return 0, errReply
	case refused[0] == "missing":
		return 0, fmt.Errorf("redisbroker: the stream %q is not trimmed: it has no group %q, which would miss what is deleted: declare it first",
			stream, refused[1])
	}
	return 0, fmt.Errorf("redisbroker: the stream %q is not trimmed: it has the group %q, which was not named: name it, or destroy it if it was retired",
		stream, refused[1])
}
