// Package sqltext tells from the text of a statement what it may do to the
// transaction in which it is sent. It reads words, comments and quotes, and
// does not parse: where a text is unclear, the answer is the careful one.
package sqltext

import (
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// Kind says what a text does to its transaction.
type Kind int

const (
	Other   Kind = iota // may do anything, or has more than one statement
	Rows                // reads or writes rows, and nothing else
	Control             // one of its statements begins or ends a transaction
)

// Effects are the effects that a text may have.
type Effects struct {
	Kind       Kind
	SearchPath bool // it changes the search_path
	Savepoint  bool // it may begin a savepoint, release it, or roll back to it
}

// known has the effects of texts that were read before. A program has few
// texts, as long as they do not contain values.
var known = struct {
	texts sync.Map // string to Effects
	count atomic.Int64
}{}

const (
	longestKnown = 4096
	maxKnown     = 1024
)

// EffectsOf returns the effects of a text.
func EffectsOf(sql string) Effects {
	if e, ok := known.texts.Load(sql); ok {
		return e.(Effects)
	}
	e := Effects{Kind: classify(sql), SearchPath: setsSearchPath(sql), Savepoint: nests(sql)}
	if len(sql) <= longestKnown && known.count.Add(1) <= maxKnown {
		known.texts.Store(strings.Clone(sql), e)
	}
	return e
}

// classify reads the first words of each statement of a text.
func classify(sql string) Kind {
	first, rest := classifyFirst(sql)
	for n := 1; rest != ""; n++ {
		var next Kind
		if next, rest = classifyFirst(rest); next == Control {
			return Control
		}
		if rest != "" || n > 1 {
			first = min(first, Other)
		}
	}
	return first
}

// classifyFirst also returns the text after the first statement.
func classifyFirst(sql string) (Kind, string) {
	s := scanner{sql}
	first, second := s.word(), s.word()
	k := Other
	switch first {
	case "select", "insert", "update", "delete", "with", "merge", "values":
		k = Rows
	case "begin", "start", "commit", "end", "abort":
		k = Control
	case "rollback":
		for second == "work" || second == "transaction" {
			second = s.word()
		}
		if second != "to" { // a savepoint
			k = Control
		}
	case "prepare":
		if second == "transaction" {
			k = Control
		}
	}
	s.skipStatement()
	s.skipSpace()
	if s.text != "" && k == Rows {
		k = Other
	}
	return k, s.text
}

// scanner reads the lexical structure of PostgreSQL's SQL, to find where a
// statement ends.
type scanner struct{ text string }

// word reads the next word, in lower case. It returns "" and reads nothing if
// something other than a word follows.
func (s *scanner) word() string {
	s.skipSpace()
	if strings.HasPrefix(s.text, "$") {
		return ""
	}
	end := strings.IndexFunc(s.text, func(r rune) bool { return !isWord(r) })
	if end < 0 {
		end = len(s.text)
	}
	word := s.text[:end]
	s.text = s.text[end:]
	return strings.ToLower(word)
}

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '$' || r > 127
}

// skipSpace skips white space and comments.
func (s *scanner) skipSpace() {
	for {
		s.text = strings.TrimLeft(s.text, " \t\r\n\f\v")
		switch {
		case strings.HasPrefix(s.text, "--"):
			s.skipTo(strings.IndexAny(s.text, "\r\n"), 1)
		case strings.HasPrefix(s.text, "/*"):
			s.skipComment()
		default:
			return
		}
	}
}

// skipComment skips a comment, including those nested in it.
func (s *scanner) skipComment() {
	for depth := 0; s.text != ""; {
		switch {
		case strings.HasPrefix(s.text, "/*"):
			depth++
			s.text = s.text[2:]
		case strings.HasPrefix(s.text, "*/"):
			s.text = s.text[2:]
			if depth--; depth == 0 {
				return
			}
		default:
			s.text = s.text[1:]
		}
	}
}

// skipStatement skips the rest of a statement, and its semicolon.
func (s *scanner) skipStatement() {
	escapes := false
	for s.text != "" {
		s.skipSpace()
		if s.text == "" {
			return
		}
		c := s.text[0]
		switch {
		case c == ';':
			s.text = s.text[1:]
			return
		case c == '\'':
			s.skipQuoted('\'', escapes)
		case c == '"':
			s.skipQuoted('"', false)
		case c == '$':
			s.skipDollar()
		case isWord(rune(c)):
			word := s.word()
			escapes = word == "e" && strings.HasPrefix(s.text, "'")
			continue
		default:
			s.text = s.text[1:]
		}
		escapes = false
	}
}

// skipQuoted skips a quoted text. A doubled quote in it reads as two texts side
// by side.
func (s *scanner) skipQuoted(quote byte, escapes bool) {
	for i := 1; i < len(s.text); i++ {
		switch {
		case escapes && s.text[i] == '\\':
			i++
		case s.text[i] == quote && escapes && i+1 < len(s.text) && s.text[i+1] == quote:
			i++
		case s.text[i] == quote:
			s.text = s.text[i+1:]
			return
		}
	}
	s.text = ""
}

// skipDollar skips a text quoted by $tag$, or the $ of a parameter.
func (s *scanner) skipDollar() {
	end := 1 + strings.IndexByte(s.text[1:], '$')
	if end == 0 || strings.IndexFunc(s.text[1:end], func(r rune) bool { return !isWord(r) }) >= 0 {
		s.text = s.text[1:]
		return
	}
	tag := s.text[:end+1]
	s.text = s.text[len(tag):]
	s.skipTo(strings.Index(s.text, tag), len(tag))
}

// skipTo skips the text before i and n bytes from there, or everything if i is
// negative.
func (s *scanner) skipTo(i, n int) {
	if i < 0 {
		i, n = len(s.text), 0
	}
	s.text = s.text[i+n:]
}

var searchPath = regexp.MustCompile(`(?is)\bset\b.*\bsearch_path\b|\bset_config\s*\(\s*'search_path'`)

// setsSearchPath first looks for the word, which few statements contain.
func setsSearchPath(sql string) bool {
	return strings.Contains(strings.ToLower(sql), "search_path") && searchPath.MatchString(sql)
}

// Batchable reports whether a statement has the same meaning in a batch,
// together with others. In a batch, pgx would send the options that Exec and
// Query accept as values, or drop them.
func Batchable(sql string, args []any) bool {
	if EffectsOf(sql).Kind != Rows {
		return false
	}
	for _, arg := range args {
		switch arg.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			return false
		case pgx.QueryRewriter:
		default:
			return true
		}
	}
	return true
}

// nests reports whether a text may have to do with savepoints. It may if one of
// its statements begins with an unknown word: that can be the name of a
// prepared statement.
func nests(sql string) bool {
	for sql != "" {
		s := scanner{sql}
		word := s.word()
		if word == "" {
			switch s.skipSpace(); {
			case s.text == "" || s.text[0] == ';':
			case s.text[0] != '(': // of a query in parentheses
				return true
			}
		} else if !isFlat(word) {
			return true
		}
		s.skipStatement()
		sql = s.text
	}
	return false
}

// isFlat reports whether no statement that begins with this word has to do with
// savepoints.
func isFlat(word string) bool {
	switch word {
	case "select", "insert", "update", "delete", "with", "merge", "values", "table", "set", "reset", "show", "lock",
		"create", "alter", "drop", "truncate", "copy", "call", "do", "declare", "fetch", "move", "close", "explain",
		"analyze", "notify", "listen", "unlisten", "refresh", "comment", "grant", "revoke", "prepare", "execute",
		"deallocate", "security":
		return true
	}
	return false
}

// Rewritten reports whether pgx will send another text, which an argument
// makes. Named arguments change only the parameters.
func Rewritten(args []any) bool {
	for _, arg := range args {
		switch arg.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		case pgx.NamedArgs, pgx.StrictNamedArgs:
			return false
		case pgx.QueryRewriter:
			return true
		default:
			return false
		}
	}
	return false
}
