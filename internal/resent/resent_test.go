package resent

import (
	"crypto/sha256"
	"testing"
)

func printOf(s string) Print {
	if s == "" {
		return Print{}
	}
	return sha256.Sum256([]byte(s))
}

// TestARequestIsRecognisedUntilItSucceeds goes through what may become of a
// request that failed.
func TestARequestIsRecognisedUntilItSucceeds(t *testing.T) {
	a, b := new(int), new(int)
	for name, test := range map[string]struct {
		then  func(*Keys)
		id    any
		print string
		want  string
	}{
		"sent again":             {func(*Keys) {}, a, "1", "k"},
		"another":                {func(*Keys) {}, b, "1", ""},
		"another content":        {func(*Keys) {}, a, "2", ""},
		"unknown content":        {func(*Keys) {}, a, "", "k"},
		"it succeeded":           {func(k *Keys) { k.Done(a, "k") }, a, "1", ""},
		"another succeeded":      {func(k *Keys) { k.Done(b, "k") }, a, "1", "k"},
		"with another key":       {func(k *Keys) { k.Done(a, "other") }, a, "1", "k"},
		"it failed again":        {func(k *Keys) { k.Failed(a, "k", printOf("1")) }, a, "1", "k"},
		"another use failed":     {func(k *Keys) { k.Failed(a, "k2", printOf("2")) }, a, "2", "k2"},
		"unknown content failed": {func(k *Keys) { k.Failed(b, "k2", printOf("")) }, b, "1", "k2"},
	} {
		t.Run(name, func(t *testing.T) {
			k := new(Keys)
			k.Failed(a, "k", printOf("1"))
			test.then(k)
			if got, ok := k.Take(test.id, func() Print { return printOf(test.print) }); got != test.want || ok != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got, ok, test.want)
			}
			if _, ok := k.Take(test.id, func() Print { return printOf(test.print) }); ok {
				t.Error("two requests are the repeat of one")
			}
		})
	}
}

// TestMemoryIsBounded: the oldest failures are forgotten.
func TestMemoryIsBounded(t *testing.T) {
	k, ids := new(Keys), make([]int, 3*size)
	for i := range ids {
		k.Failed(&ids[i], "k", printOf("1"))
		if i%3 == 0 {
			k.Done(&ids[i], "k")
		}
	}
	if len(k.failed) != size || len(k.ids) != size {
		t.Errorf("%d and %d are remembered, want %d", len(k.failed), len(k.ids), size)
	}
	if _, ok := k.Take(&ids[len(ids)-1], func() Print { return printOf("1") }); !ok {
		t.Error("the last failure is forgotten")
	}
}
