package inbox

import (
	"context"

	"github.com/effectively-once/once/store"
)

// processor handles items. There is one for each way to handle messages:
// txSingle, txBatch, positions and effects.
type processor interface {
	// prepare is called once, when the operation of the keys is known.
	prepare()

	// newSession is called before the first item of a session. The processor
	// asks r to read partitions again.
	newSession(r *rereads)

	// handle handles items that were taken together, and returns a result for
	// each.
	handle(ctx context.Context, items []*item) []result

	// handleShelved handles a message from the shelf. m is the message as it is
	// written to the shelf if that succeeds, with the Version that the end of
	// it.hold returns.
	handleShelved(ctx context.Context, it *item, m store.Shelved) (shelvedResult, error)
}

// shelvedResult says what happened to a message from the shelf.
type shelvedResult struct {
	kind  resultKind // handled, prevented or duplicate, if there was no error
	write shelfWrite
}

// shelfWrite says whether the shelf has the message as handled.
type shelfWrite int

const (
	shelfUnwritten shelfWrite = iota // it still has to be written
	shelfWritten                     // it was written, or another process has changed the message
)
