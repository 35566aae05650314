// Package secrettest corrupts URLs and files in each of their parts, to test
// that no output shows their secrets.
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

// Secret is the password that tests use. Each half counts as secret, so that a
// text corrupted in the middle still contains one.
const Secret = left + "%2F" + right

const left, right = "HunterAbove", "zwoSECRETzwo"

// Broken calls try with a text, and then with the text corrupted at each
// position, until the test fails.
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

// Shown reports whether a text contains a half of the secret.
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

// mutants returns a text, and the text corrupted at each position. It keeps the
// colon between user and password: without it, the password is part of the user
// name, and nothing can tell.
func mutants(text string) []string {
	all := []string{text, strings.ToUpper(text[:1]) + text[1:], text + text, " " + text, text + " ", `"` + text + `"`}
	const chars = ":/?#@%&=;"
	for at := range text {
		all = append(all, text[:at])
		if text[at] != ':' || !strings.HasPrefix(text[at+1:], Secret) {
			all = append(all, text[:at]+text[at+1:])
		}
		for i := range 3 { // each kind of corruption is tried at a third of the positions
			all = append(all, text[:at]+string(chars[(at+3*i)%len(chars)])+text[at:])
		}
	}
	return all
}

// Said returns an error as it is printed and as serve logs it.
func Said(ctx context.Context, err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(secret.From(ctx).Error(err))
}
