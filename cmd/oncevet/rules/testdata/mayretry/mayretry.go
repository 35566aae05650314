// Package mayretry looks at errors.
package mayretry

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
	amqp "github.com/rabbitmq/amqp091-go"
)

type shop struct {
	store *memstore.Store
	op    *once.Operation[string]
}

func (s *shop) work(context.Context, once.Key) (string, error) { return "", nil }

func compared(err error) bool {
	if err == once.ErrRejected { // want `mayretry: errors of once are wrapped, so == misses once.ErrRejected: use errors.Is`
		return true
	}
	if once.ErrParked != err { // want `mayretry: errors of once are wrapped, so != misses once.ErrParked`
		return true
	}
	switch err {
	case nil:
	case once.ErrExpired: // want `mayretry: errors of once are wrapped, so this case misses once.ErrExpired: use errors.Is in a switch without err`
		return true
	}
	if err.Error() == once.ErrInvalid.Error() { // want `mayretry: the text of an error is compared with that of once.ErrInvalid`
		return true
	}
	return errors.Is(err, once.ErrMismatch)
}

func (s *shop) status(ctx context.Context) int {
	_, err := once.Do(ctx, s.store, s.op.For("1"), s.work)
	switch {
	case errors.Is(err, once.ErrInProgress) || errors.Is(err, once.ErrOutcomeUnknown): // an answer to somebody else
		return http.StatusConflict
	case errors.Is(err, once.ErrMismatch):
		return http.StatusUnprocessableEntity
	}
	return http.StatusOK
}

func (s *shop) repeat(ctx context.Context, id string) error {
	for {
		_, err := once.Do(ctx, s.store, s.op.For(id), s.work)
		if errors.Is(err, once.ErrInProgress) || errors.Is(err, once.ErrConflict) { // want `mayretry: the call is repeated after once.ErrInProgress and once.ErrConflict only`
			time.Sleep(time.Second)
			continue
		}
		return err
	}
}

func (s *shop) ask(ctx context.Context, id string) error {
	for {
		_, err := once.Do(ctx, s.store, s.op.For(id), s.work)
		if errors.Is(err, once.ErrInProgress) {
			continue
		}
		if after, ok := once.MayRetry(err); ok {
			time.Sleep(after)
			continue
		}
		return err
	}
}

func (s *shop) each(ctx context.Context, ids []string) error {
	for _, id := range ids {
		_, err := once.Do(ctx, s.store, s.op.For(id), s.work)
		if errors.Is(err, once.ErrInProgress) {
			continue // somebody else is at it
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *shop) consume(ctx context.Context, d amqp.Delivery) error {
	_, err := once.Do(ctx, s.store, s.op.For(d.MessageId), s.work)
	if errors.Is(err, once.ErrInProgress) {
		return d.Ack(false) // want `mayretry: d.Ack acknowledges the message after once.ErrInProgress`
	}
	if errors.Is(err, once.ErrExpired) {
		return d.Ack(false)
	}
	return err
}

// refused is an error of this package that counts as another one.
type refused struct{}

func (refused) Error() string        { return "refused" }
func (refused) Is(target error) bool { return target == once.ErrRejected }

// parkedOnly looks at each cause.
func parkedOnly(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if err == once.ErrParked {
			return true
		}
	}
	return false
}

func (s *shop) switches(ctx context.Context, d amqp.Delivery) error {
	for {
		_, err := once.Do(ctx, s.store, s.op.For("1"), s.work)
		switch {
		case errors.Is(err, once.ErrInProgress), errors.Is(err, once.ErrOutcomeUnknown): // want `mayretry: the call is repeated after once.ErrInProgress and once.ErrOutcomeUnknown only`
			continue
		case errors.Is(err, once.ErrConflict):
			return d.Ack(false) // want `mayretry: d.Ack acknowledges the message after once.ErrConflict`
		case errors.Is(err, once.ErrRejected):
			return d.Ack(false)
		}
		return err
	}
}
