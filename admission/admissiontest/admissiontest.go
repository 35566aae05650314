// Package admissiontest has an Admit and stores for tests of the guards.
package admissiontest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
)

// Room is an Admit with a number of free places. It records who left.
type Room struct {
	RetryAfter time.Duration // while it is full

	mu   sync.Mutex
	free int
	left []string
}

// NewRoom returns a room with free places.
func NewRoom(free int, retryAfter time.Duration) *Room {
	return &Room{free: free, RetryAfter: retryAfter}
}

// Admit takes a place. A call that leaves without a record gives it back.
func (r *Room) Admit(key once.Key) (leave func(kept bool), wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free == 0 {
		return nil, r.RetryAfter
	}
	r.free--
	return func(kept bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.left = append(r.left, fmt.Sprint(key.Scope, " ", key.ID, " ", kept))
		if !kept {
			r.free++
		}
	}, 0
}

// Add adds free places.
func (r *Room) Add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
}

// WantLeft checks which keys have left since the last call: the scope and the ID
// of each key, and whether it was kept.
func (r *Room) WantLeft(t testing.TB, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.left, want) {
		t.Errorf("left: %q, want %q", r.left, want)
	}
	r.left = nil
}

// HookedStore is a store that calls functions of a test.
type HookedStore struct {
	once.Store
	AfterGet   func(once.Record, error) (once.Record, error) // returns what Get returns; nil: unchanged
	AfterClaim func()
}

// Unwrap returns the inner store.
func (s *HookedStore) Unwrap() once.Store { return s.Store }

// Get calls AfterGet.
func (s *HookedStore) Get(ctx context.Context, key once.Key) (once.Record, error) {
	rec, err := s.Store.Get(ctx, key)
	if s.AfterGet != nil {
		return s.AfterGet(rec, err)
	}
	return rec, err
}

// Claim calls AfterClaim.
func (s *HookedStore) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	rec, err := s.Store.Claim(ctx, r)
	if s.AfterClaim != nil {
		s.AfterClaim()
	}
	return rec, err
}

// Moment is when a client disconnects.
type Moment int

const (
	BeforeClaim  Moment = iota // nothing is claimed
	ReplyLost                  // the claim is made, and its reply is lost
	WithTheReply               // the claim is made, and its reply arrives
)

// Moments are all moments.
var Moments = []Moment{BeforeClaim, ReplyLost, WithTheReply}

func (m Moment) String() string {
	return [...]string{"before the claim", "reply lost", "with the reply"}[m]
}

// DisconnectStore is a store whose client disconnects during the first claim.
type DisconnectStore struct {
	once.Store
	When       Moment
	Disconnect func() // ends the context of the client
}

// Unwrap returns the inner store.
func (s *DisconnectStore) Unwrap() once.Store { return s.Store }

// Claim disconnects the client, once, and waits until its context ends.
func (s *DisconnectStore) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	if s.Disconnect == nil {
		return s.Store.Claim(ctx, r)
	}
	if s.When != BeforeClaim {
		rec, err = s.Store.Claim(ctx, r)
	}
	s.Disconnect()
	s.Disconnect = nil
	<-ctx.Done()
	if s.When != WithTheReply {
		return once.Record{}, ctx.Err()
	}
	return rec, err
}
