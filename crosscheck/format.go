package crosscheck

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/effectively-once/once"
)

// Syntax is how a report is written.
type Syntax int

const (
	Detect    Syntax = iota // by the first character: an object is JSON Lines, all else is CSV
	CSV                     // with a header line
	JSONLines               // one object per line
)

// Format says how to read a report. The zero Format reads CSV with commas or
// JSON Lines, and looks for the column with the IDs.
//
// A column is named by the header of CSV. In JSON Lines it is a member of the
// object, or a JSON pointer such as /metadata/order.
type Format struct {
	Syntax    Syntax
	Delimiter rune // of CSV; default: comma

	// ID is the column with the IDs of keys, and Key the column with keys as they
	// travel, see [once.Key.String]. Only one of them may be set. Default: the first
	// of the columns id, key, idempotency_key and reference that exists, taken as an
	// ID.
	ID, Key   string
	SkipEmpty bool // skip lines without an ID; default: they are an error

	// Status is the column that says whether it happened: it did if the value is one
	// of Happened. Default: every line happened.
	Status   string
	Happened []string

	Amount       string // column; default: amounts are not compared
	DecimalComma bool   // 12,50 is twelve and a half
	Currency     string // column; default: currencies are not compared
}

// defaultColumns are tried in this order.
var defaultColumns = []string{"id", "key", "idempotency_key", "reference"}

// MaxLine is the maximum number of bytes of a line.
const MaxLine = 1 << 20

// FormatError reports a report that cannot be read, or that does not fit its
// [Format].
type FormatError struct {
	Line int // counted from 1; 0: it is about the whole report
	Text string
}

// Error says where the mistake is and what to do.
func (e *FormatError) Error() string {
	if e.Line == 0 {
		return "the report: " + e.Text
	}
	return fmt.Sprintf("line %d of the report: %s", e.Line, e.Text)
}

func wrong(line int, format string, args ...any) error {
	return &FormatError{line, fmt.Sprintf(format, args...)}
}

func (f *Format) validate() error {
	switch {
	case f.ID != "" && f.Key != "":
		return wrong(0, "the columns of IDs and of keys are both given: give one")
	case (f.Status == "") != (len(f.Happened) == 0):
		return wrong(0, "a column with a status needs the values that mean that it happened, and the other way round")
	case f.Delimiter != 0 && (f.Delimiter == '"' || f.Delimiter == '\r' || f.Delimiter == '\n' || f.Delimiter == utf8.RuneError || !utf8.ValidRune(f.Delimiter)):
		return wrong(0, "%q cannot be a delimiter", f.Delimiter)
	}
	return nil
}

// packed are the first bytes of files that are not text.
var packed = []struct{ magic, text string }{
	{"\x1f\x8b", "it is compressed with gzip: unpack it, for example with gunzip"},
	{"PK\x03\x04", "it is a ZIP archive or a spreadsheet: unpack it, or export it as CSV"},
	{"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it, for example with unzstd"},
	{"BZh", "it is compressed with bzip2: unpack it, for example with bunzip2"},
	{"\xfd7zXZ", "it is compressed with xz: unpack it, for example with unxz"},
	{"\xff\xfe", "it is UTF-16: convert it, for example with iconv -f utf-16 -t utf-8"},
	{"\xfe\xff", "it is UTF-16: convert it, for example with iconv -f utf-16 -t utf-8"},
	{"[", "it is an array of JSON: write one object per line, for example with jq -c '.[]'"},
}

// line is a line of a report.
type line struct {
	number   int
	text     string // of the column with the ID or key; empty: to be skipped
	key      once.Key
	id       [16]byte // of the key
	status   string
	happened bool
	amount   *decimal // nil: there is none
	currency string
	written  string // the amount as it stands there
	object   func() []byte
}

// lines reads the lines of a report.
type lines struct {
	Format
	of     once.Key // with the operation and scope
	limit  *limited
	buffer *bufio.Reader
	csv    *csv.Reader

	header []string
	column map[string]int  // places of the columns that are used
	met    map[string]bool // the columns that any line of JSON has
	number int             // of the line that was read last, or the last line of a record of CSV
	begun  bool
}

// newLines begins to read a report. Its columns are checked with the first line.
func newLines(from io.Reader, f Format, of once.Key) (*lines, error) {
	l := &lines{Format: f, of: of, limit: &limited{from: from}, met: make(map[string]bool)}
	l.limit.allow()
	l.buffer = bufio.NewReaderSize(l.limit, 64<<10)
	if start, _ := l.buffer.Peek(3); string(start) == "\ufeff" {
		l.buffer.Discard(3)
	}
	start, err := l.buffer.Peek(6)
	if len(start) == 0 {
		if err != nil && err != io.EOF {
			return nil, err
		}
		return nil, wrong(0, "it is empty: not even a header line is there")
	}
	for _, p := range packed {
		if bytes.HasPrefix(start, []byte(p.magic)) {
			return nil, wrong(0, "%s", p.text)
		}
	}
	if l.Syntax == Detect {
		if l.Syntax = CSV; bytes.HasPrefix(bytes.TrimLeft(start, " \t\r\n"), []byte("{")) {
			l.Syntax = JSONLines
		}
	}
	if l.Syntax == JSONLines {
		return l, nil
	}
	l.csv = csv.NewReader(l.buffer)
	if l.Delimiter != 0 {
		l.csv.Comma = l.Delimiter
	}
	l.header, err = l.record()
	if err == io.EOF {
		return nil, wrong(0, "it is empty: not even a header line is there")
	}
	if err != nil {
		return nil, err
	}
	return l, l.columns(l.header)
}

// columns finds the columns that are used.
func (l *lines) columns(names []string) error {
	if l.ID == "" && l.Key == "" {
		for _, name := range defaultColumns {
			if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, name) }); i >= 0 {
				l.ID = names[i]
				break
			}
		}
		if l.ID == "" {
			hint := ""
			if len(names) == 1 && l.Syntax == CSV && strings.ContainsAny(names[0], ";\t|") {
				hint = ". Perhaps the delimiter is not a comma"
			}
			return wrong(0, "it has none of the columns %s, but %s: name the column with the ID%s", strings.Join(defaultColumns, ", "), listed(names), hint)
		}
	}
	if l.Syntax == JSONLines {
		return nil // each line has its own
	}
	l.column = make(map[string]int)
	for _, name := range []string{l.ID, l.Key, l.Status, l.Amount, l.Currency} {
		if name == "" {
			continue
		}
		i := slices.Index(names, name)
		if i < 0 {
			return wrong(0, "it has no column %q, but %s", name, listed(names))
		}
		if slices.Index(names[i+1:], name) >= 0 {
			return wrong(0, "it has two columns %q: rename one", name)
		}
		l.column[name] = i
	}
	return nil
}

// missing returns an error if no line of JSON has one of the columns: a status
// that is never there would mean that nothing happened.
func (l *lines) missing() error {
	for _, name := range []string{l.Status, l.Amount, l.Currency} {
		if l.Syntax == JSONLines && name != "" && !l.met[name] {
			return wrong(0, "no line has %q", name)
		}
	}
	return nil
}

const maxListed = 30 // columns in an error

func listed(names []string) string {
	var quoted []string
	for _, name := range names[:min(len(names), maxListed)] {
		quoted = append(quoted, fmt.Sprintf("%.60q", name))
	}
	if len(names) > maxListed {
		quoted = append(quoted, "…")
	}
	return strings.Join(quoted, ", ")
}

// record reads a record of CSV.
func (l *lines) record() ([]string, error) {
	l.limit.allow()
	fields, err := l.csv.Read()
	var failed *csv.ParseError
	switch {
	case errors.Is(err, errLong):
		return nil, wrong(l.number+1, "it has over 1 MiB: perhaps a quote is not closed")
	case errors.As(err, &failed) && errors.Is(err, csv.ErrFieldCount):
		return nil, wrong(failed.StartLine, "it has %d fields, and the header has %d", len(fields), len(l.header))
	case errors.As(err, &failed):
		return nil, wrong(failed.StartLine, "%v", failed.Err)
	case err != nil:
		return nil, err
	}
	start, _ := l.csv.FieldPos(0)
	for _, field := range fields {
		if !utf8.ValidString(field) {
			return nil, wrong(start, "it is not UTF-8: convert the report, for example with iconv -f windows-1252 -t utf-8")
		}
	}
	l.number, _ = l.csv.FieldPos(len(fields) - 1)
	return fields, nil
}

// next returns the next line, or io.EOF.
func (l *lines) next() (line, error) {
	if l.Syntax == JSONLines {
		return l.nextObject()
	}
	fields, err := l.record()
	if err != nil {
		return line{}, err
	}
	start, _ := l.csv.FieldPos(0)
	return l.line(start, func(name string) (string, error) {
		return fields[l.column[name]], nil
	}, func() []byte { return object(l.header, fields) })
}

// object returns a line of CSV as an object, in the order of its columns.
func object(names, fields []string) []byte {
	b := []byte{'{'}
	for i, field := range fields {
		if slices.Index(names[:i], names[i]) >= 0 {
			continue // an object has each name once
		}
		if i > 0 {
			b = append(b, ',')
		}
		name, _ := json.Marshal(names[i])
		value, _ := json.Marshal(field)
		b = append(append(append(b, name...), ':'), value...)
	}
	return append(b, '}')
}

// nextObject reads a line of JSON.
func (l *lines) nextObject() (line, error) {
	for {
		l.limit.allow()
		text, err := l.buffer.ReadBytes('\n')
		if err != nil && err != io.EOF && !errors.Is(err, errLong) {
			return line{}, err
		}
		l.number++
		if len(text) > MaxLine || errors.Is(err, errLong) {
			return line{}, wrong(l.number, "it has over 1 MiB: write one object per line")
		}
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			if err == io.EOF {
				return line{}, io.EOF
			}
			continue
		}
		return l.parse(text)
	}
}

func (l *lines) parse(text []byte) (line, error) {
	if !utf8.Valid(text) {
		return line{}, wrong(l.number, "it is not UTF-8: convert the report, for example with iconv -f windows-1252 -t utf-8")
	}
	v, err := parseJSON(text)
	if err != nil {
		return line{}, wrong(l.number, "it is not JSON: %v", err)
	}
	members, ok := v.(map[string]any)
	if !ok {
		return line{}, wrong(l.number, "it is not an object: write one object per line")
	}
	if !l.begun {
		l.begun = true
		var names []string
		for name := range members {
			names = append(names, name)
		}
		slices.Sort(names)
		if err := l.columns(names); err != nil {
			return line{}, err
		}
	}
	return l.line(l.number, func(name string) (string, error) {
		value, found := members[name]
		if !found && strings.HasPrefix(name, "/") {
			value, found = at(v, name)
		}
		if !found || value == nil {
			return "", nil
		}
		l.met[name] = true
		text, ok := scalar(value)
		if !ok {
			return "", wrong(l.number, "%s is neither a string nor a number", name)
		}
		return text, nil
	}, func() []byte {
		var short bytes.Buffer
		_ = json.Compact(&short, text) // it was parsed
		return short.Bytes()
	})
}

// line makes a line of the values of its columns.
func (l *lines) line(number int, value func(column string) (text string, err error), object func() []byte) (line, error) {
	at := line{number: number, happened: true, object: object}
	var err error
	get := func(column string) (text string) {
		if column != "" && err == nil {
			text, err = value(column)
		}
		return text
	}
	column := l.ID
	if l.Key != "" {
		column = l.Key
	}
	at.text = get(column)
	at.status, at.written, at.currency = get(l.Status), strings.TrimSpace(get(l.Amount)), strings.TrimSpace(get(l.Currency))
	if err != nil {
		return at, err
	}
	if l.Status != "" {
		if at.happened = slices.Contains(l.Happened, at.status); !at.happened {
			for _, like := range l.Happened { // or a second effect would count as one that did not happen
				if strings.EqualFold(strings.TrimSpace(at.status), strings.TrimSpace(like)) {
					return at, wrong(number, "%s is %.60q, and %.60q means that it happened: if this means the same, name it too; values are compared exactly", l.Status, at.status, like)
				}
			}
		}
	}
	switch {
	case strings.TrimSpace(at.text) == "" && l.SkipEmpty:
		at.text = ""
		return at, nil
	case strings.TrimSpace(at.text) == "":
		return at, wrong(number, "%s is empty: complete the line, or skip lines without it", column)
	case strings.TrimSpace(at.text) != at.text:
		return at, wrong(number, "%s is %.60q, with a space at an end: remove it, because IDs are compared exactly", column, at.text)
	case l.Key != "":
		if at.id = parseKey(at.text); at.id == [16]byte{} {
			return at, wrong(number, "%s is %.60q, which is no key as it travels: if it is the ID of a key, say so", column, at.text)
		}
	default:
		at.key = l.of
		at.key.ID = at.text
		if err := at.key.Validate(); err != nil {
			return at, wrong(number, "%s: %v", column, err)
		}
		at.id = at.key.UUID()
	}
	if at.written == "" {
		return at, nil
	}
	text := at.written
	if l.DecimalComma {
		if strings.Contains(text, ".") {
			return at, wrong(number, "%s is %.60q: write it with a decimal comma and without points", l.Amount, at.written)
		}
		text = strings.Replace(text, ",", ".", 1)
	}
	d, ok := parseDecimal(text)
	if !ok {
		return at, wrong(number, "%s is %.60q, which is not a number: write it like 1234.50%s", l.Amount, at.written,
			map[bool]string{true: ", or say that it has a decimal comma"}[strings.Contains(text, ",") && !l.DecimalComma])
	}
	at.amount = &d
	return at, nil
}

// limited reads a limited number of bytes between two calls of allow.
type limited struct {
	from io.Reader
	left int
}

var errLong = errors.New("the line is too long")

// slack is what is read ahead of a line.
const slack = 128 << 10

func (l *limited) allow() { l.left = MaxLine + slack }

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errLong
	}
	n, err := l.from.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}
