package main

import (
	"strings"
	"testing"
)

func TestStory(t *testing.T) {
	var out strings.Builder
	if err := tell(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	want := `order-1, 4999 cents: receipt 1 over 4999 cents (replayed)
order-1, 4999 cents: receipt 1 over 4999 cents (replayed)
order-1, 1 cents: FailedPrecondition, IDEMPOTENCY_KEY_MISMATCH
order-2, -5 cents: InvalidArgument
order-2, -5 cents: InvalidArgument (replayed)
the bank has 1 payment, of 4999 cents
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}
