package target

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/effectively-once/once"
)

// Environment variables that configure sealing for all verbs that open a store.
const (
	SecretsVariable = "ONCE_SEAL_SECRETS" // ID:BASE64, separated by spaces; the first one seals, "-" seals nothing
	SealVariable    = "ONCE_SEAL"         // what to seal: outcomes,shelf,outbox; default all
	OnlyVariable    = "ONCE_SEALED_ONLY"  // what to refuse if it is not sealed; default nothing
)

// Sealing is the textual form of once.Sealing.
type Sealing struct {
	Secrets []string // ID:BASE64; the first one seals, "-" seals nothing
	Seal    []string // outcomes, shelf, outbox; empty: all
	Only    []string // as Seal; empty: nothing
}

const longestID = 32

var sealedParts = map[string]once.Parts{"outcomes": once.SealOutcomes, "shelf": once.SealShelf, "outbox": once.SealOutbox}

// sealingFromEnvironment reads the variables.
func sealingFromEnvironment() (once.Sealing, error) {
	list := func(name string) []string {
		return strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ' ' || r == ',' || r == '\n' || r == '\t' })
	}
	s, err := Sealing{list(SecretsVariable), list(SealVariable), list(OnlyVariable)}.Parse()
	if err != nil {
		return s, fmt.Errorf("%s, %s or %s: %w", SecretsVariable, SealVariable, OnlyVariable, err)
	}
	return s, nil
}

// Parse returns the Sealing for a store. Its errors show no secret.
func (s Sealing) Parse() (sealing once.Sealing, err error) {
	if sealing.Seal, err = parseParts(s.Seal); err != nil {
		return sealing, err
	}
	if sealing.Only, err = parseParts(s.Only); err != nil {
		return sealing, err
	}
	var secrets []once.Secret
	for i, word := range s.Secrets {
		if i == 0 && word == "-" {
			secrets = append(secrets, once.Secret{})
			continue
		}
		id, coded, ok := strings.Cut(word, ":")
		raw, err := base64.StdEncoding.DecodeString(coded)
		if !ok || err != nil || len(id) > longestID { // it may be a misplaced secret
			return sealing, fmt.Errorf("secret %d is not ID:BASE64 with at least 32 random bytes", i+1)
		}
		secrets = append(secrets, once.Secret{ID: id, Bytes: raw})
	}
	if len(secrets) > 0 {
		if sealing.Ring, err = once.NewRing(secrets...); err != nil {
			return sealing, err
		}
	}
	if sealing.Only != 0 && !sealing.Seals(sealing.Only) {
		return sealing, errors.New("parts that are refused if they are plain must be sealed: give a secret that seals, and seal the same parts")
	}
	return sealing, sealing.Validate()
}

func parseParts(words []string) (parts once.Parts, err error) {
	for _, word := range words {
		part, ok := sealedParts[word]
		if !ok {
			var known []string
			for name := range sealedParts {
				known = append(known, name)
			}
			slices.Sort(known)
			return 0, fmt.Errorf("there is no part %q: use %s", word, strings.Join(known, ", "))
		}
		parts |= part
	}
	return parts, nil
}
