package crosscheck

import (
	"strconv"
	"strings"
)

// decimal is a decimal number: its digits times ten to the exponent. The digits
// neither begin nor end with a zero, so equal numbers are equal decimals. Zero
// has no digits.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

// parseDecimal reads a number as in 12.50, -3 or 1e2.
func parseDecimal(text string) (d decimal, ok bool) {
	mantissa, exponent, scaled := text, "", false
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		mantissa, exponent, scaled = text[:at], text[at+1:], true
	}
	if scaled {
		n, err := strconv.ParseInt(exponent, 10, 16)
		if err != nil {
			return d, false
		}
		d.exponent = int(n)
	}
	if rest, found := strings.CutPrefix(mantissa, "-"); found {
		mantissa, d.negative = rest, true
	} else {
		mantissa = strings.TrimPrefix(mantissa, "+")
	}
	whole, part, _ := strings.Cut(mantissa, ".")
	d.digits = whole + part
	d.exponent -= len(part)
	if d.digits == "" || strings.Trim(d.digits, "0123456789") != "" {
		return decimal{}, false
	}
	d.digits = strings.TrimLeft(d.digits, "0")
	short := strings.TrimRight(d.digits, "0")
	d.exponent += len(d.digits) - len(short)
	if d.digits = short; short == "" {
		return decimal{}, true
	}
	return d, true
}

// shifted returns the number divided by ten to the power of places.
func (d decimal) shifted(places int) decimal {
	if d.digits != "" {
		d.exponent -= places
	}
	return d
}

// fixed returns text, a number in units of ten to the power of -places, as a person
// writes it: 1007 with 2 places is 10.07. A number that is not whole, or with more
// places than any currency has, stays as it is.
func fixed(text string, places int) string {
	digits := strings.TrimLeft(text, "+-")
	if places <= 0 || places > 30 || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return text
	}
	sign := text[:len(text)-len(digits)]
	if missing := places + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	return sign + digits[:len(digits)-places] + "." + digits[len(digits)-places:]
}
