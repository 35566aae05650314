// Package secret keeps passwords out of output. A [Set] learns the secrets that
// a command is given in URLs and the environment, and removes them from errors,
// findings and log lines in any encoding. Patterns alone do not suffice:
// drivers quote URLs in their own ways, and a malformed URL matches no pattern.
package secret

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Hidden replaces a secret.
const Hidden = "xxxxx"

// Set is a set of known secrets. Its methods may be called concurrently. A nil
// *Set knows none and hides by pattern.
type Set struct {
	mu     sync.RWMutex
	values map[string]bool
	public map[string]bool // words that a URL also has elsewhere: hiding them would hide the message
	forms  []string        // encodings of the values, the longest first; nil: to be computed
}

type contextKey struct{}

// With returns a context with a Set.
func With(ctx context.Context) (context.Context, *Set) {
	s := new(Set)
	return context.WithValue(ctx, contextKey{}, s), s
}

// From returns the Set of a context, or a new one.
func From(ctx context.Context) *Set {
	if s, ok := ctx.Value(contextKey{}).(*Set); ok {
		return s
	}
	return new(Set)
}

// Add adds values.
func (s *Set) Add(values ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values == nil {
		s.values, s.public = map[string]bool{}, map[string]bool{}
	}
	for _, v := range values {
		if v != "" {
			s.values[v], s.forms = true, nil
		}
	}
}

func (s *Set) addPublic(words ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range words {
		s.public[w], s.forms = true, nil
	}
}

// AddURL adds the secrets in a URL or in a driver's own form of one. It need
// not be valid: whatever stands where a password could be counts as one.
func (s *Set) AddURL(text string) {
	s.Add()
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		scheme, rest, _ = strings.Cut(text, ":")
	}
	if at := strings.LastIndex(rest, "@"); isURL && at >= 0 {
		for piece := range strings.SplitSeq(rest[:at], ",") {
			user, password, found := strings.Cut(piece, ":")
			if before, _, more := strings.Cut(piece, "@"); more && !strings.Contains(before, ":") {
				user, found = before, false
			}
			switch {
			case found:
				s.addEncoded(password)
				if _, last, ok := strings.Cut(password, "@"); ok { // of an earlier host
					s.addEncoded(last)
				}
				s.addPublic(user)
			case scheme == "nats" || scheme == "tls": // a user without a password is a token
				s.addEncoded(user)
			default:
				if name, password, colon := strings.Cut(decoded(user), ":"); colon {
					s.Add(password)
					user = name
				}
				s.addPublic(user)
			}
		}
		s.addEncoded(afterColon(rest[:at]))
	}
	if u, err := url.Parse(text); err == nil {
		s.addPublic(u.Scheme, u.Hostname(), strings.TrimPrefix(u.Path, "/"))
	}
	if _, query, ok := strings.Cut(text, "?"); ok {
		for parameter := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
			switch name, value, found := strings.Cut(parameter, "="); {
			case !found: // the rest of a value that contains an &
				s.addEncoded(name)
			case !Shows(name, value):
				s.addEncoded(value)
			}
		}
	}
	for _, found := range assigned.FindAllStringSubmatch(text, -1) {
		s.addEncoded(strings.Trim(found[2], `'"`))
	}
	if found := mysqlForm.FindStringSubmatch(text); !isURL && found != nil {
		s.Add(found[1])
	}
}

func afterColon(userinfo string) string {
	_, password, _ := strings.Cut(userinfo, ":")
	return password
}

func (s *Set) addEncoded(value string) {
	s.Add(value, decoded(value))
	if plus, err := url.QueryUnescape(value); err == nil {
		s.Add(plus)
	}
}

func decoded(value string) string {
	if plain, err := url.PathUnescape(value); err == nil {
		return plain
	}
	return value
}

var (
	// assigned matches a secret in a setting: password=hunter2 or
	// password='hunter 2'.
	assigned = regexp.MustCompile(`(?i)([a-z0-9_]*(?:password|passwd|pwd|secret|token|passphrase)[a-z0-9_]*(?:\s*=\s*|%3d))` +
		"('(?:[^'\\\\]|\\\\.)*'|\"[^\"]*\"|[^\\s&#;'\"`]+)")
	// signed matches a URL with a user and a password.
	signed = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s:/?#@"']*:)([^\s"'` + "`" + `]+)@`)
	// mysqlForm matches the form of go-sql-driver.
	mysqlForm = regexp.MustCompile(`^[^:@/]*:(.*)@[a-z0-9]*\(`)
	// variable matches the name of a secret, which is not secret.
	variable = regexp.MustCompile(`^\$\{[^{}]*\}$`)
)

// Shows reports whether the value of a URL parameter can be printed. Unknown
// parameters cannot: a misspelt name may be that of a password.
func Shows(name, value string) bool {
	return shown[name] || variable.MatchString(value)
}

// shown are the parameters whose values are printed.
var shown = func() map[string]bool {
	names := map[string]bool{}
	for name := range strings.FieldsSeq(`
		prefix schema partition outbox slot socket
		host port user dbname sslmode sslcert sslkey sslrootcert sslnegotiation sslsni passfile service servicefile
		target_session_attrs application_name connect_timeout search_path statement_timeout lock_timeout timezone TimeZone
		idle_in_transaction_session_timeout client_encoding krbsrvname krbspn min_protocol_version max_protocol_version
		channel_binding default_query_exec_mode statement_cache_capacity description_cache_capacity synchronous_commit
		pool_max_conns pool_min_conns pool_min_idle_conns pool_max_conn_lifetime pool_max_conn_idle_time
		pool_health_check_period pool_max_conn_lifetime_jitter
		tls timeout readTimeout writeTimeout charset collation loc parseTime interpolateParams multiStatements
		maxAllowedPacket clientFoundRows columnsWithAlias checkConnLiveness rejectReadOnly compress serverPubKey
		allowAllFiles allowCleartextPasswords allowFallbackToPlaintext allowNativePasswords allowOldPasswords
		timeTruncate transaction_isolation sql_mode time_zone
		_pragma _txlock _time_format _time_integer_format _inttotime _timezone mode cache immutable vfs
		cluster addr master_name db protocol client_name dial_timeout read_timeout write_timeout pool_size pool_timeout
		pool_fifo min_idle_conns max_idle_conns max_active_conns max_retries min_retry_backoff max_retry_backoff
		conn_max_idle_time conn_max_lifetime read_only route_by_latency route_randomly max_redirects skip_verify
		region endpoint topics emulator index expiry partition_key sort_key insecure
		creds sasl heartbeat channel_max frame_max connection_timeout cacertfile certfile keyfile verify auth_mechanism`) {
		names[name] = true
	}
	return names
}()

// shortest is the length from which a value is hidden even within a word.
const shortest = 4

// Hide returns a text without the secrets.
func (s *Set) Hide(text string) string {
	text = signed.ReplaceAllStringFunc(text, func(found string) string {
		parts := signed.FindStringSubmatch(found)
		if variable.MatchString(parts[2]) {
			return found
		}
		return parts[1] + Hidden + "@"
	})
	text = assigned.ReplaceAllStringFunc(text, func(found string) string {
		parts := assigned.FindStringSubmatch(found)
		if variable.MatchString(parts[2]) {
			return found
		}
		return parts[1] + Hidden
	})
	if s == nil {
		return text
	}
	for _, form := range s.all() {
		if utf8.RuneCountInString(form) >= shortest {
			text = strings.ReplaceAll(text, form, Hidden)
		} else {
			text = replaceWord(text, form)
		}
	}
	return text
}

// replaceWord replaces old where it is not part of a longer word.
func replaceWord(text, word string) string {
	inWord := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	var b strings.Builder
	for {
		at := strings.Index(text, word)
		if at < 0 {
			b.WriteString(text)
			return b.String()
		}
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[at+len(word):])
		b.WriteString(text[:at])
		if inWord(before) || inWord(after) {
			b.WriteString(word)
		} else {
			b.WriteString(Hidden)
		}
		text = text[at+len(word):]
	}
}

func (s *Set) all() []string {
	s.mu.RLock()
	forms := s.forms
	s.mu.RUnlock()
	if forms != nil {
		return forms
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for value := range s.values {
		if s.public[value] || variable.MatchString(value) {
			continue
		}
		for _, once := range encodings(value) {
			for _, twice := range encodings(once) {
				seen[twice] = true
			}
		}
		if len(value) >= 2*shortest {
			raw := []byte(value)
			seen[base64.StdEncoding.EncodeToString(raw)] = true
			seen[base64.URLEncoding.EncodeToString(raw)] = true
		}
	}
	s.forms = []string{}
	for form := range seen {
		s.forms = append(s.forms, form)
	}
	slices.SortFunc(s.forms, func(a, b string) int { return len(b) - len(a) }) // longer forms first, since they may contain others
	return s.forms
}

// encodings returns a value as URLs, JSON, %q and loggers write it.
func encodings(v string) []string {
	all := []string{v, url.QueryEscape(v), url.PathEscape(v), inner(strconv.Quote(v)), inner(strconv.QuoteToASCII(v)),
		strings.ReplaceAll(url.QueryEscape(v), "+", "%20"), url.UserPassword("", v).String()[1:],
		strings.ReplaceAll(v, `'`, `\'`), strings.ReplaceAll(v, `'`, `''`)}
	all = append(all, lowerHex(all[1]), lowerHex(all[2]))
	if text, err := json.Marshal(v); err == nil {
		all = append(all, inner(string(text)))
	}
	var plain strings.Builder
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
	if e.Encode(v) == nil {
		all = append(all, inner(strings.TrimSuffix(plain.String(), "\n")))
	}
	return all
}

var escaped = regexp.MustCompile(`%[0-9A-F]{2}`)

func lowerHex(s string) string { return escaped.ReplaceAllStringFunc(s, strings.ToLower) }

func inner(quoted string) string { return quoted[1 : len(quoted)-1] }

// hidden is an error with a redacted text. The wrapped error may contain
// secrets, and is only for errors.Is and errors.As.
type hidden struct {
	text string
	err  error
}

func (h *hidden) Error() string { return h.text }
func (h *hidden) Unwrap() error { return h.err }

// Error returns an error that wraps err and has no secrets in its text. It
// returns nil for nil.
func (s *Set) Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if clean := s.Hide(text); clean != text {
		return &hidden{clean, err}
	}
	return err
}

// Writer returns a writer that removes secrets from each text written in one
// call, such as a line of a log.
func (s *Set) Writer(to io.Writer) io.Writer { return writer{to, s} }

type writer struct {
	to  io.Writer
	set *Set
}

func (w writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.to, w.set.Hide(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
