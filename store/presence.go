package store

import "context"

// Presence is a [Relayable] that can tell that the process of a relay has ended,
// by a lock that ends with the process. Without it, the lanes of a dead relay are
// free when its leases lapse.
type Presence interface {
	// AppearRelay begins the presence of a relay under a new ID, which nobody had
	// before and nobody gets again. The relay leases lanes under that ID only while
	// it is present. AppearRelay returns nil and no error where nothing can tell that
	// a process has ended.
	AppearRelay(ctx context.Context) (Present, error)
}

// Present is the presence of a relay. It ends with the process, at an error of
// Look, or with Close. Its methods are called from one goroutine at a time.
type Present interface {
	// ID returns the ID of the relay.
	ID() [16]byte

	// Look returns nil as its error only if the relay was present at some moment of
	// the call. After an error, also that of ctx, its presence has ended, or soon
	// will.
	//
	// It returns those of the others that were not present at some moment of the
	// call. An ID is never among them if it did not come from AppearRelay, or if the
	// store cannot see its presence, for example because it is in another server. The
	// presence of a relay may end while its process runs, if its connection breaks.
	// So a relay is gone if it is missing from two looks, and the time between them
	// is longer than a relay may work without a Look.
	Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error)

	// Close ends the presence.
	Close()
}
