package main

import (
	"testing"
	"time"
)

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "3d": 72 * time.Hour, "1d12h": 36 * time.Hour,
		"0s": 0, "0d": 0, "1.5h": 90 * time.Minute, "106751d": 106751 * day} {
		if got, err := parseSpan(text); got != want || err != nil {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "3", "-3d", "-1h", "3d-1h", "1.5d", "3dd", "3 d", "106752d", "106751d100h", "99999999999999999999d", "-9999999999d"} {
		if got, err := parseSpan(text); err == nil {
			t.Errorf("%s is %v", text, got)
		}
	}
	var a age
	if err := a.UnmarshalText([]byte("0s")); err == nil {
		t.Error("an age of nothing is taken")
	}
}
