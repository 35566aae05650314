// Package lostmark loses marks.
package lostmark

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
)

var errDown = errors.New("down")

func discarded(err error) error {
	once.NotDone(err)                            // want `lostmark: the result of once.NotDone is discarded`
	_ = once.Permanent(err)                      // want `lostmark: the result of once.Permanent is discarded`
	inbox.Unavailable(err)                       // want `lostmark: the result of inbox.Unavailable is discarded`
	return errors.New(once.NotDone(err).Error()) // want `lostmark: only the text of once.NotDone is kept`
}

func formatted(err error) error {
	if err == errDown {
		return fmt.Errorf("charge: %v", once.NotDone(err)) // want `lostmark: fmt.Errorf keeps only the text of once.NotDone, so that nobody learns of it: use %w`
	}
	if err != nil {
		err = once.NotDone(err)
		return fmt.Errorf("charge %d%%: %s", 7, err) // want `lostmark: fmt.Errorf keeps only the text of once.NotDone`
	}
	return fmt.Errorf("%d: %w", 7, once.NotDone(err))
}

func connect() error { return once.NotDone(errDown) }

func plain() error { return errDown }

func helpers(ctx context.Context, s *memstore.Store, op *once.Operation[string]) (string, error) {
	return once.Do(ctx, s, op.For("1"), func(ctx context.Context, key once.Key) (string, error) {
		if err := connect(); err != nil {
			return "", fmt.Errorf("connect: %v", err) // want `lostmark: fmt.Errorf keeps only the text of once.NotDone, which connect returns`
		}
		if err := connect(); err != nil {
			return "", fmt.Errorf("connect: %w", err)
		}
		err := connect()
		err = plain()
		return "", fmt.Errorf("plain: %v", err)
	})
}
