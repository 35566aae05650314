package once

import (
	"encoding/base64"
	"errors"
	"strings"

	"github.com/effectively-once/once/internal/seal"
)

// Sealing encrypts and authenticates what is stored. Readers of the database
// then see no answers and no messages, and writers cannot change one, or move it
// to another key, without being noticed. The zero value seals nothing.
//
// Processes that share a store get a new secret in two steps, because a process
// without it cannot open what it sealed. First make it the last secret of all
// rings, then the first. To begin, give all processes NewRing(Secret{}, next),
// which only opens, and then NewRing(next). A secret may be removed when nothing
// that it sealed is kept any more.
type Sealing struct {
	// Ring has the secrets. Default: nothing is sealed, and nothing sealed can be
	// opened.
	Ring *Ring

	// Seal selects what is sealed when it is written. Default: SealAll, if the Ring
	// seals.
	Seal Parts

	// Only selects what is refused if it is stored plain. A plain answer is then
	// [ErrCorrupt], a plain message in the outbox is stuck, and a plain message on
	// the shelf is not handled. Default: plain data is accepted.
	Only Parts
}

// Parts is a set of the parts of a store that can be sealed.
type Parts int

const (
	SealOutcomes Parts = 1 << iota // the answers of keys
	SealShelf                      // bodies and headers of messages on the shelf
	SealOutbox                     // bodies and headers of messages in the outbox

	SealAll = SealOutcomes | SealShelf | SealOutbox
)

// Seals reports whether these parts are sealed when they are written.
func (s *Sealing) Seals(parts Parts) bool {
	return s.Ring != nil && s.Ring.ring.Seals() && (s.Seal == 0 || s.Seal&parts == parts)
}

// RefusesPlain reports whether any of these parts is refused if it is plain.
func (s *Sealing) RefusesPlain(parts Parts) bool { return s.Only&parts != 0 }

// Validate returns an [ErrInvalid] that says what is wrong with s, or nil.
func (s *Sealing) Validate() error {
	switch {
	case (s.Seal|s.Only)&^SealAll != 0:
		return invalid("Sealing.Seal or Sealing.Only has parts that do not exist")
	case s.Seal != 0 && s.Ring == nil:
		return invalid("Sealing.Seal needs a Ring that seals")
	case s.Only != 0 && !s.Seals(s.Only):
		return invalid("Sealing.Only refuses parts that are not sealed: give Sealing a Ring that seals, and the same parts in Seal")
	}
	return nil
}

// Secret is a key of a [Ring]. The zero Secret seals nothing. As the first of a
// ring it keeps the place until all processes have the next one.
type Secret struct {
	ID    string // stored with what it seals: at most 32 letters, digits, - and _
	Bytes []byte // at least 32, random
}

// Ring seals with its first secret, and opens with all of them. It is safe for
// concurrent use.
type Ring struct{ ring *seal.Ring }

// NewRing returns a ring of these secrets. The first one seals.
//
// Each text is sealed by AES-256-GCM under its own key, which is derived from
// the secret and a random salt of 192 bits. Therefore texts need not be counted:
// after 2^80 of them, the chance that any two share a key is 2^-33.
func NewRing(secrets ...Secret) (*Ring, error) {
	all := make([]seal.Secret, len(secrets))
	for i, s := range secrets {
		all[i] = seal.Secret(s)
	}
	ring, err := seal.NewRing(all...)
	if err != nil {
		return nil, invalid("%v", err)
	}
	return &Ring{ring}, nil
}

// Seals reports whether the ring has a secret that seals.
func (r *Ring) Seals() bool { return r != nil && r.ring.Seals() }

// Seal returns text sealed for a context, which says what the text is and whose.
// Only the same context opens it. Seal panics if the ring does not seal.
func (r *Ring) Seal(text, context []byte) []byte { return r.ring.Seal(text, context) }

// Open returns the text that was sealed for a context. It returns
// [ErrOutcomeUnavailable] if the secret is not in the ring, which may be nil, and
// [ErrCorrupt] if the text was changed, or sealed for another context.
func (r *Ring) Open(sealed, context []byte) ([]byte, error) {
	text, kind, err := r.open(sealed, context)
	if err != nil {
		return nil, &failure{kind: kind, cause: err}
	}
	return text, nil
}

func (r *Ring) open(sealed, context []byte) (text []byte, kind, err error) {
	var ring *seal.Ring
	if r != nil {
		ring = r.ring
	}
	text, err = ring.Open(sealed, context)
	if errors.Is(err, seal.ErrKey) {
		return nil, ErrOutcomeUnavailable, err
	}
	return text, ErrCorrupt, err
}

const sealedText = "sealed:"

// SealText is Seal for a column of text. It returns a text that is empty or
// already sealed unchanged.
func (r *Ring) SealText(text string, context []byte) string {
	if _, sealed := cutSealed(text); sealed || text == "" {
		return text
	}
	return sealedText + base64.RawURLEncoding.EncodeToString(r.Seal([]byte(text), context))
}

// OpenText returns the text that SealText sealed for a context. It returns a
// text that was not sealed, or that it cannot open, unchanged, so that writing
// it back is harmless.
func (r *Ring) OpenText(text string, context []byte) string {
	raw, sealed := cutSealed(text)
	if !sealed {
		return text
	}
	opened, _, err := r.open(raw, context)
	if err != nil {
		return text
	}
	return string(opened)
}

// cutSealed decodes a result of SealText. Other texts may have its prefix too.
func cutSealed(text string) (raw []byte, sealed bool) {
	coded, sealed := strings.CutPrefix(text, sealedText)
	raw, err := base64.RawURLEncoding.DecodeString(coded)
	return raw, sealed && err == nil && seal.IsSealed(raw)
}

// SealReason returns the Reason of a [Settlement] as it is stored. It is sealed
// if answers are, because the text of an error may contain anything. The reason
// that a person gives to [MarkDone] is not sealed.
func (s *Sealing) SealReason(k Key, reason string) string {
	if !s.Seals(SealOutcomes) {
		return reason
	}
	return s.Ring.SealText(reason, reasonOf(k))
}

// OpenReason returns the Reason of a record, opened if possible. Nothing depends
// on a reason, so a plain one is always accepted.
func (s *Sealing) OpenReason(rec Record) string {
	return s.Ring.OpenText(rec.Reason, reasonOf(rec.Key))
}

func reasonOf(k Key) []byte {
	id := k.UUID()
	return seal.Join([]byte("reason of a key"), id[:])
}

// boundTo returns the context of a sealed outcome: the key, the input and the
// kind of answer. Stored outcomes depend on it for ever.
func (o Outcome) boundTo(k Key, fingerprint []byte) []byte {
	id := k.UUID()
	return seal.Join([]byte("outcome"), id[:], []byte{flag(o.Rejected), flag(o.Omitted)}, fingerprint)
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// seal seals the body and content type of an outcome.
func (s *Sealing) seal(k Key, fingerprint []byte, out Outcome) Outcome {
	text := seal.Join([]byte(out.ContentType), out.Body)
	out.Body, out.ContentType = s.Ring.Seal(text, out.boundTo(k, fingerprint)), sealedType
	return out
}

// Open verifies the outcome of a record and returns it as it was before it was
// sealed. It returns [ErrOutcomeUnavailable] if the secret is not in the Ring,
// and [ErrCorrupt] if the outcome was changed, belongs to another record, or is
// plain and Only refuses that.
func (s *Sealing) Open(rec Record) (Outcome, error) { return s.open(rec, rec.Key.UUID()) }

// open opens the outcome of the key with this UUID.
func (s *Sealing) open(rec Record, id [16]byte) (Outcome, error) {
	out := rec.Outcome
	fail := func(kind, cause error, hint string) (Outcome, error) {
		return Outcome{}, &failure{kind: kind, key: rec.Key, attempt: rec.Attempt, cause: cause, hint: hint}
	}
	switch {
	case out.Sum != out.checksum(id):
		return fail(ErrCorrupt, nil, "")
	case !out.isSealed() && s.RefusesPlain(SealOutcomes):
		return fail(ErrCorrupt, nil, "Sealing.Only refuses an answer that is not sealed: it was stored before sealing began, or forged")
	case !out.isSealed():
		return out, nil
	}
	text, kind, err := s.Ring.open(out.Body, out.boundTo(rec.Key, rec.Fingerprint))
	if err != nil {
		return fail(kind, err, "the answer cannot be opened")
	}
	parts, err := seal.Split(text)
	if err != nil || len(parts) != 2 {
		return fail(ErrCorrupt, err, "the sealed text is not an outcome")
	}
	out.ContentType, out.Body = string(parts[0]), parts[1]
	out.Sum = out.checksum(id)
	return out, nil
}
