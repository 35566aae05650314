package redisbroker

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

//go:embed own.lua
var ownLua string

//go:embed returned.lua
var returnedLua string

//go:embed abandoned.lua
var abandonedLua string

//go:embed renew.lua
var renewLua string

//go:embed ack.lua
var ackLua string

//go:embed return.lua
var returnLua string

//go:embed leave.lua
var leaveLua string

//go:embed sweep.lua
var sweepLua string

//go:embed activate.lua
var activateLua string

//go:embed read.lua
var readLua string

//go:embed lag.lua
var lagLua string

//go:embed trim.lua
var trimLua string

// The scripts check who owns an entry and change it in one step. XACK and XCLAIM
// by themselves take entries of any consumer.
var (
	claimReturned  = redis.NewScript(ownLua + returnedLua)
	claimAbandoned = redis.NewScript(ownLua + abandonedLua)
	renewEntries   = redis.NewScript(ownLua + renewLua)
	ackEntries     = redis.NewScript(ownLua + ackLua)
	returnEntries  = redis.NewScript(ownLua + returnLua)
	leaveGroup     = redis.NewScript(ownLua + leaveLua)
	sweepSessions  = redis.NewScript(ownLua + sweepLua)
	activate       = redis.NewScript(ownLua + activateLua)
	readActive     = redis.NewScript(ownLua + readLua)
	lagOf          = redis.NewScript(ownLua + lagLua)
	trimStream     = redis.NewScript(trimLua)
)

var errReply = errors.New("redisbroker: the server has answered a script with something else")

// claimed is what the server has given to a session.
type claimed struct {
	entries []*arrival
	deleted []string // IDs of pending entries that were deleted
	next    string   // the third part of the answer
}

// parseClaimed parses {{{id, deliveries, fields}...}, {id...}, text}, whose third
// part may be missing.
func parseClaimed(reply any) (c claimed, err error) {
	parts, ok := reply.([]any)
	if !ok || len(parts) < 2 {
		return c, errReply
	}
	if len(parts) > 2 {
		c.next, _ = parts[2].(string)
	}
	entries, ok := parts[0].([]any)
	if !ok {
		return c, errReply
	}
	for _, e := range entries {
		a, err := parseEntry(e)
		if err != nil {
			return c, err
		}
		c.entries = append(c.entries, a)
	}
	c.deleted, err = parseStrings(parts[1])
	return c, err
}

func parseEntry(reply any) (*arrival, error) {
	parts, ok := reply.([]any)
	if !ok || len(parts) != 3 {
		return nil, errReply
	}
	text, ok := parts[0].(string)
	deliveries, counted := parts[1].(int64)
	if !ok || !counted {
		return nil, errReply
	}
	fields, err := parseStrings(parts[2])
	if err != nil || len(fields)%2 != 0 {
		return nil, errReply
	}
	id, err := parseEntryID(text)
	if err != nil {
		return nil, err
	}
	a := &arrival{id: id, deliveries: int(deliveries), fields: make(map[string]string, len(fields)/2)}
	for i := 0; i < len(fields); i += 2 {
		a.fields[fields[i]] = fields[i+1]
	}
	return a, nil
}

func parseStrings(reply any) ([]string, error) {
	parts, ok := reply.([]any)
	if !ok {
		return nil, errReply
	}
	all := make([]string, len(parts))
	for i, part := range parts {
		if all[i], ok = part.(string); !ok {
			return nil, fmt.Errorf("%w: %T", errReply, part)
		}
	}
	return all, nil
}
