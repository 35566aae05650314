// Package cachetest has a cache in memory for tests, and one that misbehaves.
package cachetest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/chance"
)

// Cache is what tiered.Cache is.
type Cache interface {
	Get(ctx context.Context, keys ...string) ([][]byte, error)
	Add(ctx context.Context, values map[string][]byte, keep time.Duration) error
	Set(ctx context.Context, key string, value []byte, keep time.Duration) error
}

// Memory is a cache in memory. The zero Memory is empty.
type Memory struct {
	mu     sync.Mutex
	values map[string]kept
	gets   int
}

type kept struct {
	value []byte
	until time.Time
}

// Get returns the values of keys.
func (m *Memory) Get(_ context.Context, keys ...string) ([][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	values := make([][]byte, len(keys))
	for i, k := range keys {
		if v, ok := m.values[k]; ok && time.Now().Before(v.until) {
			values[i] = bytes.Clone(v.value)
		}
	}
	return values, nil
}

// Add keeps values whose keys have none.
func (m *Memory) Add(_ context.Context, values map[string][]byte, keep time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, value := range values {
		if v, ok := m.values[k]; !ok || !time.Now().Before(v.until) {
			m.set(k, value, keep)
		}
	}
	return nil
}

// Set keeps a value.
func (m *Memory) Set(_ context.Context, key string, value []byte, keep time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(key, value, keep)
	return nil
}

func (m *Memory) set(key string, value []byte, keep time.Duration) {
	if m.values == nil {
		m.values = make(map[string]kept)
	}
	m.values[key] = kept{bytes.Clone(value), time.Now().Add(keep)}
}

// Gets returns how often Get was called.
func (m *Memory) Gets() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gets
}

// Wipe removes all values.
func (m *Memory) Wipe() { m.Change(func(values map[string][]byte) { clear(values) }) }

// Change changes the values, and keeps those that are left for an hour.
func (m *Memory) Change(change func(values map[string][]byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	values := make(map[string][]byte)
	for k, v := range m.values {
		values[k] = v.value
	}
	change(values)
	m.values = nil
	for k, v := range values {
		m.set(k, v, time.Hour)
	}
}

// Values returns a copy of the values.
func (m *Memory) Values() (values map[string][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	values = make(map[string][]byte)
	for k, v := range m.values {
		values[k] = bytes.Clone(v.value)
	}
	return values
}

// ErrDown is the error of a cache that is down.
var ErrDown = errors.New("cachetest: the cache is down")

// Unreliable is a cache that misbehaves at random. It loses what Add wrote, fails,
// is slow, damages values, and mixes up keys.
type Unreliable struct {
	Cache

	mu     sync.Mutex
	seen   [][]byte
	failed int // calls of Set, in a row
}

// Get misbehaves at random.
func (u *Unreliable) Get(ctx context.Context, keys ...string) ([][]byte, error) {
	if err := u.trouble(ctx); err != nil {
		return nil, err
	}
	values, err := u.Cache.Get(ctx, keys...)
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, v := range values {
		if len(u.seen) < 100 && v != nil {
			u.seen = append(u.seen, bytes.Clone(v))
		}
		switch n := chance.N(16); {
		case n == 0:
			values[i] = nil
		case n == 1 && len(v) > 0:
			v[chance.N(len(v))] ^= 1 << chance.N(8)
		case n == 2 && len(v) > 0:
			values[i] = v[:chance.N(len(v))]
		case n == 3 && len(u.seen) > 0: // of another key, or an older one
			values[i] = u.other(v)
		case n == 4:
			return values[:i], nil
		}
	}
	return values, nil
}

// other returns a value of another key. One of the same key would be stale, which
// is not noticed after a Reopen.
func (u *Unreliable) other(v []byte) []byte {
	for range u.seen {
		if w := u.seen[chance.N(len(u.seen))]; !bytes.Equal(v, w) && len(v) > 1 {
			return bytes.Clone(w)
		}
	}
	return v
}

// Add misbehaves at random.
func (u *Unreliable) Add(ctx context.Context, values map[string][]byte, keep time.Duration) error {
	if err := u.trouble(ctx); err != nil || chance.N(8) == 0 {
		return err
	}
	some := slices.Sorted(maps.Keys(values))[chance.N(len(values))]
	if chance.N(4) == 0 {
		values = map[string][]byte{some: values[some]}
	}
	return u.Cache.Add(ctx, values, keep)
}

// Set fails at random, but no more than three times in a row.
func (u *Unreliable) Set(ctx context.Context, key string, value []byte, keep time.Duration) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := chance.N(4)
	if u.failed++; u.failed > 3 || n > 1 {
		u.failed = 0
		return u.Cache.Set(ctx, key, value, keep)
	}
	if n == 0 {
		_ = u.Cache.Set(ctx, key, value, keep)
	}
	return ErrDown
}

func (u *Unreliable) trouble(ctx context.Context) error {
	switch chance.N(64) {
	case 0:
		return ErrDown
	case 1:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}
