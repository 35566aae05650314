package httponce

import (
	"bytes"
	"net/http"

	"github.com/gowebpki/jcs"
)

// CanonicalJSON is a Fingerprint for JSON (RFC 8785). It ignores the order of
// members, white space, and the notation of numbers and strings. A body that is
// not JSON is compared unchanged. So is a body with a number of more than 15
// digits, because RFC 8785 rounds numbers to doubles, which could make two long
// account numbers equal.
func CanonicalJSON(_ *http.Request, body []byte) ([]byte, error) {
	if !isExact(body) {
		return body, nil
	}
	if same, err := jcs.Transform(body); err == nil {
		return same, nil
	}
	return body, nil
}

// isExact reports whether no two numbers in a JSON text become equal as doubles.
func isExact(text []byte) bool {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			i += skipString(text[i:])
		case c >= '0' && c <= '9':
			n := len(text[i:]) - len(bytes.TrimLeft(text[i:], "0123456789.eE+-"))
			if !exactNumber(text[i : i+n]) {
				return false
			}
			i += n - 1
		}
	}
	return true
}

// skipString returns the offset of the end of the string that text starts with.
func skipString(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(text)
}

// exactNumber allows 15 significant digits, and exponents far from the limits of
// a double.
func exactNumber(number []byte) bool {
	const digits, zeros, exponent = 15, 40, 3
	mantissa := number
	if at := bytes.IndexAny(number, "eE"); at >= 0 {
		mantissa = number[:at]
		if len(number)-at-1 > exponent {
			return false
		}
	}
	significant := bytes.TrimLeft(mantissa, "0.")
	return len(mantissa) <= zeros && len(significant)-bytes.Count(significant, []byte(".")) <= digits
}
