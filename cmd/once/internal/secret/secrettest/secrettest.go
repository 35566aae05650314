// Package secrettest breaks URLs and files in each of their parts, for tests that nothing shows what is secret in them.
package secrettest

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/secret"
)

// Secret is what tests put where a password is. Its halves are secret, too: a text that is broken in the middle of it
// still has one.
const Secret = left + "%2F" + right

const left, right = "HunterAbove", "zwoSECRETzwo"

// Broken calls try with a text, and with the text broken in each place in turn, until the test has failed for a while.
func Broken(t *testing.T, text string, try func(broken string) string) {
	t.Helper()
	failed := 0
	for _, broken := range mutants(text) {
		if said := try(broken); Shown(said) {
			t.Errorf("%s\n  shows the secret: %s", broken, said)
			if failed++; failed > 10 {
				t.Fatal("and so on")
			}
		}
	}
}

// Shown reports whether a half of the secret is in a text.
func Shown(text string) bool {
	for _, half := range []string{left, right} {
		quoted := base64.StdEncoding.EncodeToString([]byte(half))
		for _, form := range []string{half, strings.ToLower(half), quoted, url.QueryEscape(half)} {
			if strings.Contains(text, form) {
				return true
			}
		}
	}
	return false
}

// mutants are a text, and it broken in each of its places. The colon between a user and a password is left: without it,
// the password is a part of the user's name, and nobody can tell.
func mutants(text string) []string {
	all := []string{text, strings.ToUpper(text[:1]) + text[1:], text + text, " " + text, text + " ", `"` + text + `"`}
	const chars = ":/?#@%&=;"
	for at := range text {
		all = append(all, text[:at])
		if text[at] != ':' || !strings.HasPrefix(text[at+1:], Secret) {
			all = append(all, text[:at]+text[at+1:])
		}
		for i := range 3 { // all of them are tried, each in a third of the places
			all = append(all, text[:at]+string(chars[(at+3*i)%len(chars)])+text[at:])
		}
	}
	return all
}

// Said is an error as a person reads it, and as the logs of serve have it.
func Said(ctx context.Context, err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(secret.From(ctx).Error(err))
}
