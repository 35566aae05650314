package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/seal"
)

// SealedHeader is the only header of a sealed message, besides those that a relay
// adds. The other headers are sealed in its body.
const SealedHeader = broker.SealedHeader

const sealedVersion = "1"

// SealOutgoing returns a message as it is put into an outbox: sealed, if s seals
// the outbox. ID, Topic and OrderingKey stay readable, because relays need them. The
// sealed content is bound to them.
func SealOutgoing(s *once.Sealing, m broker.Message) broker.Message {
	return sealMessage(s, once.SealOutbox, m, "outbox")
}

// OpenOutgoing is the reverse of SealOutgoing. It returns
// [once.ErrOutcomeUnavailable] if the secret is not in the Ring, and
// [once.ErrCorrupt] if the content was changed, belongs to another message, or is
// plain although s.Only refuses that.
func OpenOutgoing(s *once.Sealing, m broker.Message) (broker.Message, error) {
	return openMessage(s, once.SealOutbox, m, "outbox")
}

// SealShelved returns a message as it is put on a [Shelf]: sealed together with its
// Reason, if s seals the shelf.
func SealShelved(s *once.Sealing, m Shelved) Shelved {
	m.Message = sealMessage(s, once.SealShelf, m.Message, "shelf", m.Consumer, m.Key)
	return SealReason(s, m)
}

// OpenShelved is the reverse of SealShelved. If the message was read without its
// body, only the Reason is opened. Unopened is set to an error as in
// [OpenOutgoing], unless the store has set it.
func OpenShelved(s *once.Sealing, m Shelved, bodiless bool) Shelved {
	m.Reason = openReason(s, m)
	if bodiless || m.Unopened != nil {
		return m
	}
	opened, err := openMessage(s, once.SealShelf, m.Message, "shelf", m.Consumer, m.Key)
	if m.Unopened = err; err == nil {
		m.Message = opened
	}
	return m
}

func sealMessage(s *once.Sealing, part once.Parts, m broker.Message, whose ...string) broker.Message {
	if _, claims := m.Header[SealedHeader]; claims { // set by the producer, who may not
		m.Header = maps.Clone(m.Header)
		delete(m.Header, SealedHeader)
	}
	if !s.Seals(part) {
		return m
	}
	var stamp []byte
	if !m.Time.IsZero() {
		stamp = binary.BigEndian.AppendUint64(nil, uint64(m.Time.UnixMicro()))
	}
	parts := [][]byte{stamp, m.Body}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		parts = append(parts, []byte(name), []byte(m.Header[name]))
	}
	m.Body = s.Ring.Seal(seal.Join(parts...), messageContext(&m, whose))
	m.Header = map[string]string{SealedHeader: sealedVersion}
	return m
}

func openMessage(s *once.Sealing, part once.Parts, m broker.Message, whose ...string) (broker.Message, error) {
	if _, sealed := m.Header[SealedHeader]; !sealed {
		if s.RefusesPlain(part) {
			return m, fmt.Errorf("%w: message %q is not sealed, and Sealing.Only refuses that: it is older than the sealing, "+
				"or was put by a program that does not seal, or is forged. If it is yours, leave this part out of Only until it is handled", once.ErrCorrupt, m.ID)
		}
		return m, nil
	}
	text, err := s.Ring.Open(m.Body, messageContext(&m, whose))
	if err != nil {
		return m, unopened(m.ID, err)
	}
	parts, err := seal.Split(text)
	if err != nil || len(parts) < 2 || len(parts)%2 != 0 {
		return m, fmt.Errorf("%w: the sealed content of message %q is not a message", once.ErrCorrupt, m.ID)
	}
	added := m.Header
	m.Header = make(map[string]string, len(parts)/2)
	for i := 2; i < len(parts); i += 2 {
		m.Header[string(parts[i])] = string(parts[i+1])
	}
	for name, value := range added { // any other is not to be trusted
		if _, there := m.Header[name]; !there && name == broker.PlaceHeader && part == once.SealOutbox {
			m.Header[name] = value
		}
	}
	if len(m.Header) == 0 {
		m.Header = nil
	}
	if m.Body, m.Time = parts[1], (time.Time{}); len(parts[0]) == 8 {
		m.Time = time.UnixMicro(int64(binary.BigEndian.Uint64(parts[0]))).UTC()
	}
	return m, nil
}

// unopenedError says why a message cannot be opened. It wraps the error of an
// outcome that cannot be opened, without its text.
type unopenedError struct {
	text string
	kind error
}

func (e *unopenedError) Error() string { return e.text }
func (e *unopenedError) Unwrap() error { return e.kind }

// unopened returns the error of a message for an error of its Ring.
func unopened(id string, err error) error {
	kind, toDo := once.ErrCorrupt, ". The stored content is not what was put: find out who can write to the table, and publish the message again from its origin"
	if IsSealKeyMissing(err) {
		kind, toDo = once.ErrOutcomeUnavailable, ""
	}
	why := strings.TrimPrefix(err.Error(), kind.Error()+": ")
	return &unopenedError{fmt.Sprintf("message %q cannot be opened: %s%s", id, why, toDo), kind}
}

// messageContext returns what a sealed message is bound to: where it is kept, and
// its parts that are not sealed.
func messageContext(m *broker.Message, whose []string) []byte {
	parts := make([][]byte, 0, len(whose)+3)
	for _, text := range append(slices.Clone(whose), m.ID, m.Topic, m.OrderingKey) {
		parts = append(parts, []byte(text))
	}
	return seal.Join(parts...)
}

// UnknownOutcome begins the Reason of a message whose effect may have happened. It
// is never sealed, because what people may do depends on it.
const UnknownOutcome = name.UnknownOutcome

// SealReason returns a message of a [Shelf] with its Reason sealed, if s seals the
// shelf. A Reason is the text of an error, which may contain anything.
func SealReason(s *once.Sealing, m Shelved) Shelved {
	prefix, text := cutReason(m.Reason)
	if s.Seals(once.SealShelf) {
		m.Reason = prefix + s.Ring.SealText(text, reasonContext(m))
	}
	return m
}

func openReason(s *once.Sealing, m Shelved) string {
	prefix, text := cutReason(m.Reason)
	return prefix + s.Ring.OpenText(text, reasonContext(m))
}

// OpenHistory returns the History of a message of a [Shelf] with those sealed
// reasons opened that can be. It is for display: the History in the store keeps
// them sealed.
func OpenHistory(s *once.Sealing, m Shelved) string {
	return sealedReasons.ReplaceAllStringFunc(m.History, func(text string) string { return s.Ring.OpenText(text, reasonContext(m)) })
}

// sealedReasons matches what once.Ring.SealText returns.
var sealedReasons = regexp.MustCompile(`sealed:[0-9A-Za-z_-]+`)

// IsSealedReason reports whether the Reason of a message that was opened is still
// sealed, because its secret is not in the Ring.
func IsSealedReason(reason string) bool {
	_, text := cutReason(reason)
	at := sealedReasons.FindStringIndex(text)
	return at != nil && at[0] == 0
}

func cutReason(reason string) (prefix, text string) {
	if text, unknown := strings.CutPrefix(reason, UnknownOutcome); unknown {
		return UnknownOutcome, text
	}
	return "", reason
}

func reasonContext(m Shelved) []byte {
	return seal.Join([]byte("reason"), []byte(m.Consumer), []byte(m.Message.ID))
}

// IsSealKeyMissing reports whether an error of opening means that the secret is not
// in the Ring.
func IsSealKeyMissing(err error) bool { return errors.Is(err, once.ErrOutcomeUnavailable) }
