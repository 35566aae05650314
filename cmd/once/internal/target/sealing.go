package target

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/effectively-once/once"
)

// The environment's variables that say how what is stored is sealed, for all verbs that open a store.
const (
	SecretsVariable = "ONCE_SEAL_SECRETS" // ID:BASE64, several with spaces between: the first seals, - seals nothing
	SealVariable    = "ONCE_SEAL"         // what is sealed: outcomes,shelf,outbox; default all
	OnlyVariable    = "ONCE_SEALED_ONLY"  // what is refused where it is plain; default nothing
)

// Sealing is how a store is sealed, in words.
type Sealing struct {
	Secrets []string // ID:BASE64, the first seals; a first one that is "-" seals nothing
	Seal    []string // outcomes, shelf, outbox; none: all
	Only    []string // the same; none: nothing
}

const longestID = 32

var sealedParts = map[string]once.Parts{"outcomes": once.SealOutcomes, "shelf": once.SealShelf, "outbox": once.SealOutbox}

// sealingFromEnvironment is what the variables say.
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

// Parse makes of the words what a store takes. No error shows a secret.
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
		if !ok || err != nil || len(id) > longestID { // which may be a secret in the wrong place
			return sealing, fmt.Errorf("the secret at place %d is not ID:BASE64, with at least 32 random bytes", i+1)
		}
		secrets = append(secrets, once.Secret{ID: id, Bytes: raw})
	}
	if len(secrets) > 0 {
		if sealing.Ring, err = once.NewRing(secrets...); err != nil {
			return sealing, err
		}
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
			return 0, fmt.Errorf("%q is no part of what is stored: there are %s", word, strings.Join(known, ", "))
		}
		parts |= part
	}
	return parts, nil
}
