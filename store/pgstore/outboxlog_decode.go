package pgstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
)

// logBytes reads what PostgreSQL sends. What is too short is an error at the end, and zeros until then.
type logBytes struct {
	rest  []byte
	short bool
}

func (b *logBytes) take(n int) []byte {
	if n < 0 || n > len(b.rest) {
		b.short, b.rest = true, nil
		return make([]byte, min(max(n, 0), 8))
	}
	head := b.rest[:n]
	b.rest = b.rest[n:]
	return head
}

func (b *logBytes) byte() byte     { return b.take(1)[0] }
func (b *logBytes) uint16() uint16 { return binary.BigEndian.Uint16(b.take(2)) }
func (b *logBytes) uint32() uint32 { return binary.BigEndian.Uint32(b.take(4)) }
func (b *logBytes) uint64() uint64 { return binary.BigEndian.Uint64(b.take(8)) }

func (b *logBytes) text() string {
	text, rest, found := bytes.Cut(b.rest, []byte{0})
	b.short, b.rest = b.short || !found, rest
	return string(text)
}

// end returns what is wrong with what was read.
func (b *logBytes) end() error {
	if b.short {
		return errors.New("a message of the log is shorter than it says")
	}
	return nil
}

// logTx is the transaction that arrives.
type logTx struct {
	at   uint64 // its commit
	time time.Time
	xid  uint64
}

// postgresEpoch is the beginning of PostgreSQL's time, in microseconds since 1970.
const postgresEpoch = 946684800 * 1000000

// readBegin reads the beginning of a transaction. Its number comes with 32 bits, and is the nearest to one that is known.
func readBegin(b *logBytes, near uint64) logTx {
	tx := logTx{at: b.uint64(), time: time.UnixMicro(int64(b.uint64()) + postgresEpoch)}
	tx.xid = near + uint64(int64(int32(b.uint32()-uint32(near))))
	return tx
}

// logRelation is where the columns of a table are in its rows.
type logRelation struct {
	schema, name string
	columns      []string
}

func readRelation(b *logBytes) (oid uint32, r logRelation) {
	oid = b.uint32()
	r.schema, r.name = b.text(), b.text()
	b.byte() // its identity
	for range b.uint16() {
		b.byte()
		r.columns = append(r.columns, b.text())
		b.take(8) // its type
		if b.short {
			break
		}
	}
	return oid, r
}

// readRow takes a row apart that was inserted. Values are texts. With an error of a value, the others are right.
func readRow(b *logBytes, columns []string) (m store.Outgoing, err error) {
	b.byte() // N: a new row
	for i := range int(b.uint16()) {
		var value []byte
		switch kind := b.byte(); kind {
		case 't':
			value = b.take(int(b.uint32()))
		case 'n':
		default:
			return m, fmt.Errorf("a column of the outbox came as %q, which is not text", kind)
		}
		if i >= len(columns) || b.short {
			break
		}
		if wrong := setColumn(&m, columns[i], value); wrong != nil && err == nil {
			err = fmt.Errorf("%w: the column %s: %w", errUnreadable, columns[i], wrong)
		}
	}
	return m, cmp.Or(b.end(), err)
}

// errUnreadable is of a message that was put in a wrong form, by another language or by hand.
var errUnreadable = errors.New("the message cannot be read")

// setColumn sets what a column holds. Columns of newer builds are not known, and nothing that this one needs.
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
		m.Message.Time, err = consuming.DecodeTime(string(value))
	case "header":
		m.Message.Header, err = consuming.DecodeHeader(string(value))
	case "body":
		m.Message.Body, err = readBytea(value)
	}
	return err
}

func readBytea(text []byte) ([]byte, error) {
	if text == nil {
		return nil, nil
	}
	digits, hexadecimal := bytes.CutPrefix(text, []byte(`\x`))
	if !hexadecimal {
		return nil, errors.New("bytea_output of the reader is not hex")
	}
	body := make([]byte, hex.DecodedLen(len(digits)))
	_, err := hex.Decode(body, digits)
	return body, err
}

// readEmitted takes a message in the log apart. Its content is a part of the buffer.
func readEmitted(b *logBytes) (transactional bool, at uint64, prefix string, content []byte) {
	transactional = b.byte()&1 != 0
	at, prefix = b.uint64(), b.text()
	return transactional, at, prefix, b.take(int(b.uint32()))
}
