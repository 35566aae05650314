package outboxlog

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// buffer reads the messages of the protocol. After its end it returns zeros,
// and err returns an error.
type buffer struct {
	rest  []byte
	short bool
}

func (b *buffer) take(n int) []byte {
	if n < 0 || n > len(b.rest) {
		b.short, b.rest = true, nil
		return make([]byte, min(max(n, 0), 8))
	}
	head := b.rest[:n]
	b.rest = b.rest[n:]
	return head
}

func (b *buffer) byte() byte     { return b.take(1)[0] }
func (b *buffer) uint16() uint16 { return binary.BigEndian.Uint16(b.take(2)) }
func (b *buffer) uint32() uint32 { return binary.BigEndian.Uint32(b.take(4)) }
func (b *buffer) uint64() uint64 { return binary.BigEndian.Uint64(b.take(8)) }

func (b *buffer) text() string {
	text, rest, found := bytes.Cut(b.rest, []byte{0})
	b.short, b.rest = b.short || !found, rest
	return string(text)
}

func (b *buffer) err() error {
	if b.short {
		return errors.New("a message of the log is shorter than it says")
	}
	return nil
}

// transaction is the transaction whose changes arrive.
type transaction struct {
	commit uint64 // the position of its commit record
	time   time.Time
	xid    uint64
}

// postgresEpoch is 2000-01-01, from which PostgreSQL counts, in microseconds
// since 1970.
const postgresEpoch = 946684800 * 1000000

// readBegin reads the begin of a transaction. The protocol sends the low 32
// bits of its number. The result is the number closest to near, which is known.
func readBegin(b *buffer, near uint64) transaction {
	tx := transaction{commit: b.uint64(), time: time.UnixMicro(int64(b.uint64()) + postgresEpoch)}
	tx.xid = near + uint64(int64(int32(b.uint32()-uint32(near))))
	return tx
}

// relation describes the rows of a table.
type relation struct {
	schema, name string
	columns      []string
}

func readRelation(b *buffer) (oid uint32, r relation) {
	oid = b.uint32()
	r.schema, r.name = b.text(), b.text()
	b.byte() // replica identity
	for range b.uint16() {
		b.byte() // flags
		r.columns = append(r.columns, b.text())
		b.take(8) // its type and modifier
		if b.short {
			break
		}
	}
	return oid, r
}

// readRow reads a row that was inserted. Values arrive as text. After an error
// in one value, the others are set.
func readRow(b *buffer, columns []string) (m store.Outgoing, err error) {
	b.byte() // N: a new row
	for i := range int(b.uint16()) {
		var value []byte
		switch kind := b.byte(); kind {
		case 't':
			value = b.take(int(b.uint32()))
		case 'n':
		default:
			return m, fmt.Errorf("a column of the outbox arrived as %q, which is not text", kind)
		}
		if i >= len(columns) || b.short {
			break
		}
		if wrong := setColumn(&m, columns[i], value); wrong != nil && err == nil {
			err = fmt.Errorf("%w: the column %s: %w", errUnreadable, columns[i], wrong)
		}
	}
	return m, cmp.Or(b.err(), err)
}

// errUnreadable is the error of a message that a program other than once has
// written incorrectly.
var errUnreadable = errors.New("the message cannot be read")

// setColumn sets the field of a column. It ignores columns that newer builds
// have added.
func setColumn(m *store.Outgoing, column string, value []byte) (err error) {
	var number int64
	switch column {
	case "seq", "created", "changed", "attempts", "lane", "state":
		if value == nil {
			return nil
		}
		if number, err = strconv.ParseInt(string(value), 10, 64); err != nil {
			return err
		}
	}
	switch column {
	case "seq":
		m.Seq = number
	case "created":
		m.Created = time.UnixMicro(number)
	case "changed":
		m.Changed = time.UnixMicro(number)
	case "attempts":
		m.Attempts = int(number)
	case "lane":
		m.Lane = int(number)
	case "state":
		m.State = store.OutgoingState(number)
	case "id":
		m.Message.ID = string(value)
	case "topic":
		m.Message.Topic = string(value)
	case "ordering_key":
		m.Message.OrderingKey = string(value)
	case "cause":
		m.Cause = string(value)
	case "reason":
		m.Reason = string(value)
	case "produced":
		m.Message.Time, err = sqlschema.DecodeTime(string(value))
	case "header":
		m.Message.Header, err = sqlschema.DecodeHeader(string(value))
	case "body":
		m.Message.Body, err = ReadBytea(value)
	}
	return err
}

// ReadBytea reads bytes as the server writes them in a text, by the setting
// bytea_output of its session: with digits, or with escapes.
func ReadBytea(text []byte) ([]byte, error) {
	if text == nil {
		return nil, nil
	}
	if digits, hexadecimal := bytes.CutPrefix(text, []byte(`\x`)); hexadecimal {
		body := make([]byte, hex.DecodedLen(len(digits)))
		_, err := hex.Decode(body, digits)
		return body, err
	}
	body := make([]byte, 0, len(text))
	for len(text) > 0 {
		char := text[0]
		switch {
		case char != '\\':
			text = text[1:]
		case len(text) >= 2 && text[1] == '\\':
			text = text[2:]
		case len(text) >= 4:
			octal, err := strconv.ParseUint(string(text[1:4]), 8, 8)
			if err != nil {
				return nil, fmt.Errorf("an escape in bytes: %w", err)
			}
			char, text = byte(octal), text[4:]
		default:
			return nil, errors.New("bytes end in an escape")
		}
		body = append(body, char)
	}
	return body, nil
}

func readEmitted(b *buffer) (transactional bool, at uint64, prefix string, content []byte) {
	transactional = b.byte()&1 != 0
	at, prefix = b.uint64(), b.text()
	return transactional, at, prefix, b.take(int(b.uint32()))
}

// parsePosition reads a position of the log in the form that PostgreSQL prints.
func parsePosition(text string) (uint64, error) {
	var high, low uint32
	if _, err := fmt.Sscanf(text, "%X/%X", &high, &low); err != nil {
		return 0, fmt.Errorf("%q is no position of the log: %w", text, err)
	}
	return uint64(high)<<32 | uint64(low), nil
}
