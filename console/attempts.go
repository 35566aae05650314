package console

import (
	"net/netip"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/bucket"
)

// Wrong tokens are answered and logged at these rates. A token is random and has 20
// characters or more, so nobody guesses it, however fast. The limits keep the log
// readable, and the work small. For that they need not refuse a right token, and so
// nobody can lock anybody out.
var (
	wrongOfOne = bucket.Rate{PerSecond: 1.0 / 6, Burst: 10} // address
	wrongOfAll = bucket.Rate{PerSecond: 1, Burst: 60}
)

// maxAddresses bounds the memory. Further addresses have the limit of all only.
const maxAddresses = 1000

// attempts remembers where wrong tokens came from.
type attempts struct {
	mu     sync.Mutex
	all    bucket.Bucket
	of     map[netip.Addr]*bucket.Bucket
	silent int // wrong tokens since the last one that was logged
}

// wrong counts a wrong token. It returns how long to wait before the next one, or 0
// and how many went by without a word since the last one for which it was 0.
func (a *attempts) wrong(from string, now time.Time) (wait time.Duration, silent int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if of := a.bucketOf(addressOf(from), now); of != nil {
		if wait = of.Take(wrongOfOne, now); wait > 0 {
			a.silent++
			return wait, 0
		}
	}
	if wait = a.all.Take(wrongOfAll, now); wait > 0 {
		a.silent++
		return wait, 0
	}
	silent, a.silent = a.silent, 0
	return 0, silent
}

// bucketOf returns the bucket of an address, or nil if there are too many of them.
func (a *attempts) bucketOf(at netip.Addr, now time.Time) *bucket.Bucket {
	if of := a.of[at]; of != nil {
		return of
	}
	if len(a.of) >= maxAddresses {
		for other, of := range a.of {
			if of.Full(wrongOfOne, now) { // as good as new
				delete(a.of, other)
			}
		}
		if len(a.of) >= maxAddresses {
			return nil
		}
	}
	if a.of == nil {
		a.of = make(map[netip.Addr]*bucket.Bucket)
	}
	a.of[at] = new(bucket.Bucket)
	return a.of[at]
}

// addressOf returns the address of a peer, or of the network that is somebody's own
// in IPv6.
func addressOf(from string) netip.Addr {
	peer, err := netip.ParseAddrPort(from)
	if err != nil {
		return netip.Addr{}
	}
	at := peer.Addr().Unmap().WithZone("")
	if at.Is6() {
		if network, err := at.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return at
}
