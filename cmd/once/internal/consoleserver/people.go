package consoleserver

import (
	"context"
	"os"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/effectively-once/once/cmd/once/internal/secret"
)

// People is the file of --people.
type People struct {
	People []Person

	// Others is the role of people whom only the proxy knows. Default: they are
	// refused.
	Others string
}

// Load reads a TOML file. It rejects unknown settings, and files that name nobody.
// It keeps tokens out of errors.
func Load(ctx context.Context, file string) (p People, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return p, refuse("%v", err)
	}
	secrets := secret.From(ctx)
	AddTokens(secrets, string(text))
	known, err := toml.Decode(string(text), &p)
	if err != nil {
		return p, secrets.Error(refuse("%s: %v", file, err))
	}
	if wrong := known.Undecoded(); len(wrong) > 0 {
		return p, secrets.Error(refuse("%s has settings that do not exist: %v", file, wrong))
	}
	if len(p.People) == 0 && p.Others == "" {
		return p, refuse("%s names nobody: add [[people]] with a name, a role and a token", file)
	}
	return p, nil
}

var token = regexp.MustCompile(`(?i)token[^\n]*`)

// AddTokens adds the tokens in a configuration, which need not be valid: errors
// quote what is wrong with it.
func AddTokens(secrets *secret.Set, text string) {
	for _, line := range token.FindAllString(text, -1) {
		for word := range strings.FieldsFuncSeq(line[len("token"):], func(r rune) bool { return strings.ContainsRune(" \t\r\"'=,[]", r) }) {
			if len(word) >= leastToken && !strings.Contains(word, "$") {
				secrets.Add(word)
				for part := range strings.FieldsFuncSeq(word, func(r rune) bool { return strings.ContainsRune("/+%-_:?#@&;", r) }) { // errors quote parts
					if len(part) >= leastPart {
						secrets.Add(part)
					}
				}
			}
		}
	}
}

// leastToken is the length from which a word after "token" may be a token or what
// is left of a damaged one, and leastPart that from which a part of it is secret.
const leastToken, leastPart = 8, 6
