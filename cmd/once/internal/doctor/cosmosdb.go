package doctor

import (
	"context"
)

func cosmosContainer(ctx context.Context, e *examination) error {
	out, err := e.Cosmos.Container.Read(ctx, nil)
	if err != nil {
		return err
	}
	is := out.ContainerProperties
	switch {
	case is.DefaultTimeToLive == nil:
		e.found("container-ttl", Unsafe, "The container "+is.ID+" has no time to live.",
			"The store refuses to work on it, because finished keys would never be deleted.",
			"Set its default time to live to -1 (on, no default), which deletes nothing by itself.")
	case *is.DefaultTimeToLive > 0:
		e.found("container-ttl", Note, "The container "+is.ID+" deletes items by default.",
			"Keys have a time to live of their own and are not affected. Your own items are.",
			"Set the default to -1, unless your items are to be deleted.")
	}
	e.found("write-regions-not-seen", Note, "The number of write regions of the account cannot be seen from here.",
		"With several, two regions accept a claim of the same key, and its work runs twice.",
		"Keep multi-region writes off.")
	return nil
}
