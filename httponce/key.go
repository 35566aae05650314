package httponce

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/dunglas/httpsfv"
)

// KeyHeader is the header with the key of a request. All requests of a caller
// with the same key count as one.
const KeyHeader = "Idempotency-Key"

// ReplayedHeader is set to true on a replayed response.
const ReplayedHeader = "Idempotent-Replayed"

// LifetimeHeader tells how long a key is honoured, if Options.TellLifetime is
// set, such as 2592000;answer=259200: a structured-field integer in seconds,
// with a parameter for the recorded response. The draft of the Idempotency-Key
// header asks servers to publish this.
const LifetimeHeader = "Idempotency-Key-Lifetime"

// isSafe reports whether requests with a method need no key.
func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// maxKey is the maximum length of a key in bytes.
const maxKey = 255

// parseKey parses the values of KeyHeader: one structured-field string, such as
// "8e03978e", or the same without quotes, as many clients send it. Both are the
// same key. A bare key has no spaces, commas or semicolons, because
// intermediaries and parsers of lists interpret these.
func parseKey(values []string) (key string, err error) {
	switch {
	case len(values) > 1:
		return "", errors.New("the header was sent more than once: send one key")
	case len(values) == 0 || values[0] == "":
		return "", errors.New("the key is empty")
	case values[0][0] == '"':
		key, err = parseQuoted(values[0])
	default:
		key, err = values[0], checkBare(values[0])
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("the key is empty")
	case len(key) > maxKey:
		return "", fmt.Errorf("the key has %d bytes, at most %d are allowed", len(key), maxKey)
	}
	return key, nil
}

// parseQuoted parses a simple string itself, and leaves one with escapes or
// parameters to the library.
func parseQuoted(value string) (string, error) {
	if inner := value[1:]; len(inner) > 0 && inner[len(inner)-1] == '"' {
		inner = inner[:len(inner)-1]
		if strings.IndexFunc(inner, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) < 0 {
			return inner, nil
		}
	}
	item, err := httpsfv.UnmarshalItem([]string{value})
	if err != nil {
		return "", fmt.Errorf("the key begins with a quote, but is not a structured-field string: %w", err)
	}
	key, ok := item.Value.(string)
	if !ok {
		return "", errors.New("the key is not a string")
	}
	return key, nil
}

func checkBare(key string) error {
	at := strings.IndexFunc(key, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`",;\`, r) })
	if at < 0 {
		return nil
	}
	return fmt.Errorf(`the key has %q at byte %d: put the key in double quotes, as a structured-field string, or use letters, digits and -_.:/+=`, key[at], at)
}

// formatKey formats a key as a structured-field string.
func formatKey(key string) (string, error) {
	return httpsfv.Marshal(httpsfv.NewItem(key))
}
