package redisstore

import (
	"errors"
	"testing"

	"github.com/effectively-once/once"
)

func TestOnlyNoevictionIsAccepted(t *testing.T) {
	for info, ok := range map[string]bool{
		"# Memory\r\nused_memory:1\r\nmaxmemory_policy:noeviction\r\nx:1\r\n": true,
		"# Memory\r\nmaxmemory_policy:allkeys-lru\r\n":                        false,
		"# Memory\r\nmaxmemory_policy:volatile-ttl\r\n":                       false,
		"# Memory\r\n": false,
		"":             false,
	} {
		if err := checkPolicy(info); errors.Is(err, once.ErrInvalid) == ok {
			t.Errorf("%q: %v", info, err)
		}
	}
}
