package once

import (
	"fmt"
	"log/slog"

	"github.com/effectively-once/once/internal/name"
)

// Key names a unit of work: who asks, what is done, and which one. Equal keys are the same work,
// and the three parts can never run into each other. Keys are comparable.
type Key struct {
	Scope     string // whose work it is: a tenant, a caller; may be empty, at most 255 bytes
	Operation string // what is done: "pay", or "pay/charge" for a step of it; mandatory, at most 255 bytes
	ID        string // which one: an order id, a message id; mandatory, 1 to 255 printable bytes
}

// Step names a part of the work that k names: a key like any other, with an outcome of its own. A unit of work that
// failed and is tried again so skips the steps that are done.
func (k Key) Step(name string) Key {
	k.Operation += "/" + name
	return k
}

// String is the key as it travels: sent to other systems as their idempotency key, carried in messages,
// put on traces. It is shaped like a UUID (36 characters) and the same for the same key for ever. It does not show
// the parts, but who can guess them can check the guess. For a log, use the Key itself with slog, or its ID.
func (k Key) String() string { return name.Format(k.UUID()) }

// UUID is the key as stores index it: a digest of the three parts, as a version 8 UUID.
func (k Key) UUID() [16]byte { return name.Digest(k.Scope, k.Operation, k.ID) }

// LogValue shows the readable parts.
func (k Key) LogValue() slog.Value {
	return slog.GroupValue(slog.String("scope", k.Scope), slog.String("operation", k.Operation),
		slog.String("id", k.ID), slog.String("key", k.String()))
}

// Validate says what is wrong with k, as an [ErrInvalid].
func (k Key) Validate() error {
	if err := name.CheckKey(k.Scope, k.Operation, k.ID); err != nil {
		return invalid("key: %v", err)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
