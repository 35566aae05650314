package pgstore

import (
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// kind says what a text does to the transaction that it is sent in, as far as can be seen.
type kind int

const (
	other   kind = iota // or more than one statement: it may do anything
	plain               // reads or writes rows, and no more
	control             // begins or ends a transaction, in one of its statements
)

// judgement is what a text is found to do.
type judgement struct {
	kind  kind
	moves bool // it changes the schema that tables without one are in
	nests bool // it may begin a savepoint, or go back to one
}

// judged are texts that were looked at before: a program has few, as long as values are not in them.
var judged = struct {
	texts sync.Map // string to judgement
	count atomic.Int64
}{}

const (
	longestJudged = 4096
	maxJudged     = 1024
)

// judge looks at a text, or remembers it.
func judge(sql string) judgement {
	if known, ok := judged.texts.Load(sql); ok {
		return known.(judgement)
	}
	j := judgement{kind: classify(sql), moves: movesTables(sql), nests: nests(sql)}
	if len(sql) <= longestJudged && judged.count.Add(1) <= maxJudged {
		judged.texts.Store(strings.Clone(sql), j)
	}
	return j
}

// kindOf is the kind of a text.
func kindOf(sql string) kind { return judge(sql).kind }

// classify looks at the first words of each statement of a text.
func classify(sql string) kind {
	first, rest := kindOfFirst(sql)
	for n := 1; rest != ""; n++ {
		var next kind
		if next, rest = kindOfFirst(rest); next == control {
			return control
		}
		if rest != "" || n > 1 {
			first = min(first, other)
		}
	}
	return first
}

// kindOfFirst also returns what is behind the first statement; nothing if there is no other.
func kindOfFirst(sql string) (kind, string) {
	s := scanner{sql}
	first, second := s.word(), s.word()
	k := other
	switch first {
	case "select", "insert", "update", "delete", "with", "merge", "values":
		k = plain
	case "begin", "start", "commit", "end", "abort":
		k = control
	case "rollback":
		for second == "work" || second == "transaction" {
			second = s.word()
		}
		if second != "to" { // a savepoint
			k = control
		}
	case "prepare":
		if second == "transaction" {
			k = control
		}
	}
	s.skipStatement()
	s.skipSpace()
	if s.text != "" && k == plain {
		k = other
	}
	return k, s.text
}

// scanner reads the lexical structure of PostgreSQL's SQL, as far as it takes to know where a statement ends.
type scanner struct{ text string }

// word is the next word in lower case. It is empty if something else comes next, which is left where it is.
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

// skipComment skips a comment, and those in it.
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

// skipStatement skips the rest of a statement, with the semicolon.
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

// skipQuoted skips a text in quotes. Two of them in it are one, which reads as two texts side by side.
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

// skipDollar skips a text in $tag$, or the sign of a parameter.
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

// skipTo skips to what is at i, and n bytes of it; everything if i is negative.
func (s *scanner) skipTo(i, n int) {
	if i < 0 {
		i, n = len(s.text), 0
	}
	s.text = s.text[i+n:]
}

// searchPath is how a statement changes the schema that tables without one are in.
var searchPath = regexp.MustCompile(`(?is)\bset\b.*\bsearch_path\b|\bset_config\s*\(\s*'search_path'`)

// movesTables reports whether a statement does that. Most do not have the words, which is quickly found out.
func movesTables(sql string) bool {
	return strings.Contains(strings.ToLower(sql), "search_path") && searchPath.MatchString(sql)
}

// travels reports whether a statement means the same in a batch as by itself.
func travels(sql string, args []any) bool {
	if kindOf(sql) != plain {
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
