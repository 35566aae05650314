package once

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"

	"github.com/effectively-once/once/internal/seal"
)

// Sealing encrypts what is stored, and authenticates it, so that a reader of the database sees no answers and no messages,
// and who writes to it cannot change one or move it to another key without being noticed. The zero value seals nothing.
//
// Processes that share a store get a new secret in two steps, because one that lacks it can open nothing that it sealed:
// first as the last secret of all rings, then as the first. The first ring of all is NewRing(Secret{}, next), which only
// opens, then NewRing(next). A secret may be removed when nothing that it sealed is kept any more.
type Sealing struct {
	// Ring has the secrets. Default: nothing is sealed, and nothing that is sealed can be opened.
	Ring *Ring

	// Seal is what is sealed when it is written. Default: SealAll, if the Ring seals.
	Seal Parts

	// Only is what is refused where it is stored plain. An answer that is not sealed is [ErrCorrupt] then; a message in
	// the outbox is stuck, one on the shelf is not handled. Default: what is plain is accepted.
	Only Parts
}

// Parts are parts of what is stored.
type Parts int

const (
	SealOutcomes Parts = 1 << iota // the answers of keys
	SealShelf                      // bodies and headers of messages that consumers put aside
	SealOutbox                     // bodies and headers of messages on their way out

	SealAll = SealOutcomes | SealShelf | SealOutbox
)

// Seals reports whether these parts are sealed when they are written.
func (s *Sealing) Seals(parts Parts) bool {
	return s.Ring != nil && s.Ring.ring.Seals() && (s.Seal == 0 || s.Seal&parts == parts)
}

// RefusesPlain reports whether any of these parts is refused where it is plain.
func (s *Sealing) RefusesPlain(parts Parts) bool { return s.Only&parts != 0 }

// Validate says what is wrong with s, as an [ErrInvalid].
func (s *Sealing) Validate() error {
	switch {
	case (s.Seal|s.Only)&^SealAll != 0:
		return invalid("Sealing.Seal or Sealing.Only has parts that do not exist")
	case s.Seal != 0 && s.Ring == nil:
		return invalid("Sealing.Seal names what is sealed, and there is no Ring to seal it with")
	case s.Only != 0 && !s.Seals(s.Only):
		return invalid("Sealing.Only refuses what Sealing does not seal: give it a Ring that seals, and the same parts in Seal")
	}
	return nil
}

// Secret is a key of a [Ring]. The zero Secret seals nothing: as the first one, it is for the time until all processes
// have the next.
type Secret struct {
	ID    string // stored with what it seals: at most 32 letters, digits, - and _
	Bytes []byte // at least 32, random
}

// Ring seals with its first secret, and opens with all of them. It may be used concurrently.
type Ring struct{ ring *seal.Ring }

// NewRing returns a ring with these secrets, the one that seals first.
//
// Each text is sealed by AES-256-GCM under a key of its own, derived from the secret and a random salt of 192 bits. So no
// count of texts has to be kept: after 2^80 of them the chance that any two share a key is 2^-33.
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

// Seal returns text sealed for a context, which says what it is and whose: only the same context opens it. It panics if
// the ring does not seal.
func (r *Ring) Seal(text, context []byte) []byte { return r.ring.Seal(text, context) }

// Open returns the text that was sealed for a context. [ErrOutcomeUnavailable]: its secret is not in the ring, which may
// be nil. [ErrCorrupt]: it was changed, or sealed for another context.
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

// SealText is Seal for a text that is to stay one. What is empty, or sealed already, comes back as it is.
func (r *Ring) SealText(text string, context []byte) string {
	if _, sealed := cutSealed(text); sealed || text == "" {
		return text
	}
	return sealedText + base64.RawURLEncoding.EncodeToString(r.Seal([]byte(text), context))
}

// OpenText returns the text that SealText has sealed for a context. One that was not sealed, or cannot be opened, comes back
// as it is: so who writes it back changes nothing.
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

// cutSealed returns what SealText has sealed. A text may begin with the same word and be none of it.
func cutSealed(text string) (raw []byte, sealed bool) {
	coded, sealed := strings.CutPrefix(text, sealedText)
	raw, err := base64.RawURLEncoding.DecodeString(coded)
	return raw, sealed && err == nil && seal.IsSealed(raw)
}

// SealReason returns the Reason of a [Settlement] as it is stored: sealed with the answers, because the text of an error
// may have anything in it. What a person decided is not sealed: see MarkDone.
func (s *Sealing) SealReason(k Key, reason string) string {
	if !s.Seals(SealOutcomes) {
		return reason
	}
	return s.Ring.SealText(reason, reasonOf(k))
}

// OpenReason returns the Reason of a record, opened if it was sealed and can be. A reason is for people and nothing depends
// on it, so one that is plain is always accepted.
func (s *Sealing) OpenReason(rec Record) string {
	return s.Ring.OpenText(rec.Reason, reasonOf(rec.Key))
}

func reasonOf(k Key) []byte {
	id := k.UUID()
	return seal.Join([]byte("reason of a key"), id[:])
}

// sealedType is the content type of an outcome that is sealed; its own is sealed with its body.
const sealedType = "application/vnd.once.sealed"

// isSealed reports whether an outcome is sealed.
func (o Outcome) isSealed() bool { return strings.HasPrefix(o.ContentType, sealedType) }

// boundTo is what a sealed outcome is bound to: it answers this key, with this input, in this way. What is stored depends
// on it for ever.
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

// seal seals an outcome.
func (s *Sealing) seal(k Key, fingerprint []byte, out Outcome) Outcome {
	text := seal.Join([]byte(out.ContentType), out.Body)
	out.Body, out.ContentType = s.Ring.Seal(text, out.boundTo(k, fingerprint)), sealedType
	return out
}

// Open returns the outcome of a record as it was before it was sealed, with its body. One that was not sealed comes back
// as it is. [ErrOutcomeUnavailable]: the secret is not in the Ring. [ErrCorrupt]: it was changed, or is another record's,
// or is plain and Only refuses that.
func (s *Sealing) Open(rec Record) (Outcome, error) {
	out := rec.Outcome
	fail := func(kind, cause error, hint string) (Outcome, error) {
		return Outcome{}, &failure{kind: kind, key: rec.Key, attempt: rec.Attempt, cause: cause, hint: hint}
	}
	switch {
	case out.Sum != out.checksum(rec.Key):
		return fail(ErrCorrupt, nil, "")
	case !out.isSealed() && s.RefusesPlain(SealOutcomes):
		return fail(ErrCorrupt, nil, "its answer is not sealed, and Sealing.Only refuses that: it is older than the sealing, or forged")
	case !out.isSealed():
		return out, nil
	}
	text, kind, err := s.Ring.open(out.Body, out.boundTo(rec.Key, rec.Fingerprint))
	if err != nil {
		return fail(kind, err, "its answer cannot be opened")
	}
	parts, err := seal.Split(text)
	if err != nil || len(parts) != 2 {
		return fail(ErrCorrupt, err, "what was sealed is no outcome")
	}
	out.ContentType, out.Body = string(parts[0]), parts[1]
	out.Sum = out.checksum(rec.Key)
	return out, nil
}

// packed is an outcome that was made ready for the store, and what it was made of: what is sealed twice looks different,
// and a store that has written one already compares.
type packed struct {
	plain, ready Outcome
	fingerprint  []byte
}

func (p *packed) fits(out Outcome, fingerprint []byte) bool {
	return p != nil && out.ContentType == p.plain.ContentType && out.Rejected == p.plain.Rejected &&
		out.Omitted == p.plain.Omitted && bytes.Equal(out.Body, p.plain.Body) && bytes.Equal(fingerprint, p.fingerprint)
}
