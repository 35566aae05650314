// Package resent recognises a request that a client above sends again after it
// failed, so that both attempts have one key.
package resent

import (
	"crypto/sha256"
	"sync"
)

// size is how many failed requests are remembered. Older ones are forgotten.
const size = 1024

// Keys are the keys of requests that failed. The zero value is empty. Keys is
// safe for concurrent use.
type Keys struct {
	mu     sync.Mutex
	failed map[any]request
	ids    []any // in the order in which they failed; some may have ended since
}

type request struct {
	key   string
	print Print
}

// Print is a digest of the content of a request. The zero Print is that of
// content that can be read only once.
type Print [sha256.Size]byte

// Take returns the key of a request that failed, and forgets it: only one
// request is its repeat. id has a pointer that all attempts share. A program may
// use it for another request with other content, which print tells. It is called
// if id is known. Content that cannot be compared counts as equal: if it is not,
// the server refuses the key.
func (k *Keys) Take(id any, print func() Print) (key string, ok bool) {
	k.mu.Lock()
	known, ok := k.failed[id]
	k.mu.Unlock()
	if !ok {
		return "", false
	}
	now, unknown := print(), Print{}
	if now != known.print && now != unknown && known.print != unknown {
		return "", false
	}
	return known.key, k.forget(id, known.key)
}

// Failed remembers the key of a request.
func (k *Keys) Failed(id any, key string, print Print) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed == nil {
		k.failed = make(map[any]request)
	}
	if _, known := k.failed[id]; !known {
		k.ids = append(k.ids, id)
	}
	k.failed[id] = request{key, print}
	for len(k.ids) > size {
		delete(k.failed, k.ids[0])
		k.ids = k.ids[1:]
	}
}

// Done forgets a request with this key: it has succeeded, so the next one with
// the same pointer is another request.
func (k *Keys) Done(id any, key string) { k.forget(id, key) }

func (k *Keys) forget(id any, key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, ok := k.failed[id]; !ok || known.key != key {
		return false
	}
	delete(k.failed, id)
	for i, other := range k.ids {
		if other == id {
			k.ids = append(k.ids[:i], k.ids[i+1:]...)
			break
		}
	}
	return true
}
