package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// span is a duration flag that is not negative. It accepts days besides the units
// of time.Duration.
type span time.Duration

// UnmarshalText is called by kong.
func (s *span) UnmarshalText(text []byte) error {
	read, err := parseSpan(string(text))
	*s = span(read)
	return err
}

// age is a span that is not zero, because a zero age would select everything or
// nothing.
type age time.Duration

// UnmarshalText is called by kong.
func (a *age) UnmarshalText(text []byte) error {
	read, err := parseSpan(string(text))
	if err == nil && read == 0 {
		err = fmt.Errorf("%q is zero: omit it", text)
	}
	*a = age(read)
	return err
}

// moment is a flag with a point in time.
type moment time.Time

// UnmarshalText is called by kong.
func (m *moment) UnmarshalText(text []byte) error {
	read, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return fmt.Errorf("%q is not a point in time: write it like 2026-11-22T14:03:00Z, or 2026-11-22T15:03:00+01:00", text)
	}
	*m = moment(read)
	return nil
}

const (
	day     = 24 * time.Hour
	maxDays = int64(math.MaxInt64 / day)
)

func parseSpan(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a duration: write it like 90s, 15m, 48h, 3d or 1d12h", text)
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "0", text
	}
	n, err := strconv.ParseInt(days, 10, 64)
	if err != nil || n > maxDays {
		return 0, wrong
	}
	var part time.Duration
	if rest != "" || !found {
		if part, err = time.ParseDuration(rest); err != nil {
			return 0, wrong
		}
	}
	sum := time.Duration(n)*day + part
	switch {
	case n < 0 || part < 0:
		return 0, fmt.Errorf("%q is negative: write a duration like 90s, 15m, 48h, 3d or 1d12h", text)
	case sum < part:
		return 0, wrong
	}
	return sum, nil
}
