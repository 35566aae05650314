package doctor

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// natsBucket looks at what the store itself does not refuse.
func natsBucket(ctx context.Context, e *examination) error {
	stream, err := e.Bucket.JetStream.Stream(ctx, e.Bucket.Stream)
	if err != nil {
		return err
	}
	is := stream.CachedInfo()
	switch {
	case is.Config.Storage != jetstream.FileStorage:
		e.found("bucket-memory", Unsafe, "The bucket "+e.Bucket.Name+" is in memory.",
			"When its servers stop, all keys are lost, and their work runs again.", "Create it with file storage: see natsstore's Migrate.")
	case is.Config.Replicas == 1:
		e.found("bucket-alone", Note, "The bucket "+e.Bucket.Name+" has one replica.",
			"While its server is down, calls fail. If its disk is lost, so are the keys.", "In a cluster, give it three replicas.")
	}
	if is.Cluster != nil {
		for _, peer := range is.Cluster.Replicas {
			if !peer.Current || peer.Offline {
				e.found("bucket-behind", Warning, fmt.Sprintf("The replica %s of the bucket %s is offline, or not current.", peer.Name, e.Bucket.Name),
					"If another server fails, the bucket may have no leader, and calls fail.", "Repair the server, and see nats stream info.")
			}
		}
	}
	if most := is.Config.MaxBytes; most > 0 && float64(is.State.Bytes) > fullMemory*float64(most) {
		e.found("bucket-full", Warning, fmt.Sprintf("The bucket %s uses %d of its %d bytes.", e.Bucket.Name, is.State.Bytes, most),
			"When it is full, claims fail.", "Raise max_bytes, or keep keys for a shorter time.")
	}
	e.found("sync-interval-not-seen", Note, "The sync_interval of the servers cannot be seen from here.",
		"With its default of two minutes, a power loss of the machine, or of most machines of a cluster, loses the last keys, and their work runs again.",
		"Set sync_interval: always, if that must not happen.")
	return nil
}
