package answers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What one call has on its way: a stream buffers 10,000 messages and 128 MiB, and refuses more.
const (
	maxMessages = 128
	maxBytes    = 4 << 20
)

// Store publishes messages and waits for the streams to confirm them. It returns an error for each, nil for those that
// were confirmed.
func (d *Requester) Store(ctx context.Context, ms []*nats.Msg) []error {
	errs := make([]error, 0, len(ms))
	for len(errs) < len(ms) {
		part := portion(ms[len(errs):])
		got, failed := d.Ask(ctx, part)
		for i, err := range failed {
			if err == nil {
				err = confirmed(part[i].Subject, got[i])
			}
			errs = append(errs, err)
		}
		// The rest would only overtake what was lost, and is not sent.
		if i := slices.IndexFunc(failed, func(err error) bool { return err != nil && !IsTooLarge(err) }); i >= 0 {
			return append(errs, slices.Repeat(failed[i:i+1], len(ms)-len(errs))...)
		}
	}
	return errs
}

// portion returns the messages that go together: at least one.
func portion(ms []*nats.Msg) []*nats.Msg {
	ms, size := ms[:min(len(ms), maxMessages)], 0
	for i, m := range ms {
		if size += m.Size(); size > maxBytes && i > 0 {
			return ms[:i]
		}
	}
	return ms
}

// confirmed reads what the server answered to a message.
func confirmed(subject string, m *nats.Msg) error {
	if code, text, ok := Status(m); ok {
		if code == "503" {
			return fmt.Errorf("natsbroker: no stream takes the subject %q, or it has no leader just now: create a stream "+
				"for it, or correct the topic", subject)
		}
		return fmt.Errorf("natsbroker: the server answered %s %s", code, text)
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err == nil && ack.Error != nil:
		return fmt.Errorf("natsbroker: %w", ack.Error)
	case err != nil || ack.Stream == "":
		return fmt.Errorf("natsbroker: what answered for the subject %q is no stream: correct the topic", subject)
	}
	return nil
}

// Codes of the server that jetstream has no names for.
const codeHeaderTooLarge = jetstream.ErrorCode(10097)

// IsTooLarge reports whether a message will never be taken, because of its size.
func IsTooLarge(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || api.ErrorCode == codeHeaderTooLarge
	}
	return errors.Is(err, nats.ErrMaxPayload)
}

// Status reports whether the server itself speaks, and what it says.
func Status(m *nats.Msg) (code, text string, ok bool) {
	code = m.Header.Get("Status")
	return code, m.Header.Get("Description"), len(m.Data) == 0 && code != ""
}
