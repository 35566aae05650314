package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// span is a time as flags take it: like a time.Duration, and with days. It is not negative.
type span time.Duration

// UnmarshalText is called by kong.
func (s *span) UnmarshalText(text []byte) error {
	read, err := parseSpan(string(text))
	*s = span(read)
	return err
}

// age is a span of which none would select nothing, or everything.
type age time.Duration

// UnmarshalText is called by kong.
func (a *age) UnmarshalText(text []byte) error {
	read, err := parseSpan(string(text))
	if err == nil && read == 0 {
		err = fmt.Errorf("%q is no time at all: leave it out", text)
	}
	*a = age(read)
	return err
}

// moment is a point in time as flags take it.
type moment time.Time

// UnmarshalText is called by kong.
func (m *moment) UnmarshalText(text []byte) error {
	read, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return fmt.Errorf("%q is no point in time: give one like 2026-11-22T14:03:00Z, or 2026-11-22T15:03:00+01:00", text)
	}
	*m = moment(read)
	return nil
}

const (
	day     = 24 * time.Hour
	maxDays = int64(math.MaxInt64 / day)
)

func parseSpan(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is no time: give one like 90s, 15m, 48h, 3d or 1d12h", text)
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
		return 0, fmt.Errorf("%q is negative: give a time like 90s, 15m, 48h, 3d or 1d12h", text)
	case sum < part:
		return 0, wrong
	}
	return sum, nil
}
