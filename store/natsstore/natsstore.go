// Package natsstore is a store in NATS, in a JetStream key-value bucket.
//
// # What it implements
//
// A [Store] is a [once.Store], so it works with [once.Do]. It is also a
// [once.Lister] of what is not done, and a [store.Reopener]. It is not a
// [once.TxStore]: a key does not commit together with rows of another database.
// For that, keep the key there.
//
// # How keys are stored
//
// The record of a key is one message: the outcome is its body, and a header has
// the rest as JSON. A claim and a settlement publish it, on the condition that
// the latest message of the key still has the sequence number that was read.
// Numbers are never used twice, so a key that was forgotten has no old version.
//
// Records that are Running, Unknown or Parked have other subjects than the rest,
// which is how they are found among millions:
//
//	$KV.once.open.5.5d41402abc4b2a76b9719d911017c592
//	$KV.once.done.5.5d41402abc4b2a76b9719d911017c592
//
// The number is the key's UUID, and its first digit is repeated. A settlement
// publishes to the second subject. After its reply, the store sends a request to
// delete the message of the first, and does not wait for it. If that request is
// lost, List and Forget delete the message.
//
// The server deletes a message of the second kind some seconds after the end of
// its KeepKey, and never one of the first kind. A body stays as long as its key.
//
// # Reads and the clock
//
// The leader of the stream answers all reads, so AllowDirect must be off: with
// it, any replica answers.
//
// The clock is that of the stream's leader. The store asks for it every minute,
// and checks the configuration of the stream in the same request.
//
// # What it needs, and what NATS can lose
//
// The package needs nats-server 2.12 or newer, and the stream that [Store.Migrate]
// creates. docs/stores/nats.md says what a crash can lose, and what was tested.
//
// # Compatibility
//
// As package once.
package natsstore

import (
	"context"
	"fmt"
	"regexp"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
	"github.com/nats-io/nats.go/jetstream"
)

// Options configures a Store. The zero value is valid.
type Options struct {
	once.Options

	// Bucket names the key-value bucket. Stores with different buckets share
	// nothing. Default: "once".
	Bucket string

	// Replicas is how many servers of a cluster keep the bucket that Migrate
	// creates: 1, 3 or 5. Default: 1.
	Replicas int
}

// Store is a store in a bucket. It is safe for concurrent use.
type Store struct {
	*cas.Store
	bucket *bucket
}

var (
	_ once.Lister    = (*Store)(nil)
	_ store.Reopener = (*Store)(nil)
)

var bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// New returns a store. A nil Options means the defaults. The connection of js
// remains the caller's.
func New(js jetstream.JetStream, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	b := &bucket{js: js, name: o.Bucket, replicas: max(o.Replicas, 1)}
	if b.name == "" {
		b.name = "once"
	}
	switch {
	case js == nil:
		b.invalid = fmt.Errorf("%w: natsstore: the JetStream is nil", once.ErrInvalid)
	case !bucketName.MatchString(b.name):
		b.invalid = fmt.Errorf("%w: natsstore: the bucket %q: use letters, digits, - and _", once.ErrInvalid, b.name)
	}
	b.clock.Ask = b.ask
	return &Store{Store: cas.New(b, &b.clock, o.Options.Ready()), bucket: b}
}

// Migrate creates the stream of the bucket, unless it exists. Any number of
// processes may call it at once.
func (s *Store) Migrate(ctx context.Context) error { return s.bucket.create(ctx) }

// Schema returns the stream that Migrate creates, for those who create it with
// another tool. Its placement, compression and metadata may be changed.
func (s *Store) Schema() jetstream.StreamConfig { return s.bucket.config() }

// Forget returns 0, because the server itself deletes what is past its time. It
// looks at up to limit open records, and deletes messages that settlements have
// left behind.
func (s *Store) Forget(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	return 0, s.bucket.sweep(ctx, limit)
}
