package sqlserver_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"

	"github.com/effectively-once/once/store/sqlschema"
)

// healthy answers the queries that a store sends before its first statement:
// the tables and the session are right.
func healthy(q question) (answer, bool) {
	for part, n := range map[string]int64{"OBJECT_ID": 1, "MAX(version)": latest(), "MAX(compatible)": 1, "@@OPTIONS": 0} {
		if strings.Contains(q.text, part) {
			return rows([]any{n}), true
		}
	}
	return answer{}, false
}

func latest() int64 {
	n, err := sqlschema.For(sqlschema.SQLServer, "", "")
	if err != nil {
		panic(err)
	}
	return int64(n.Latest())
}

func rows(all ...[]any) answer { return answer{sets: [][][]any{all}} }

func failed(number int32) answer { return answer{number: number, message: "no"} }

const (
	doneMore, doneError, doneCount            = 1, 2, 16
	doneAttention                             = 32
	tokenDone, tokenDoneCall, tokenDoneInCall = 0xfd, 0xfe, 0xff
	envBegin, envCommit, envRollback          = 8, 9, 10
)

// encode encodes an answer as the server does.
func (a answer) encode(q question) (out []byte) {
	for _, set := range a.sets {
		out = append(out, encodeSet(set)...)
		out = append(out, done(tokenDoneInCall, doneMore|doneCount, uint64(len(set)))...)
	}
	if a.number != 0 {
		out = append(out, encodeError(a.number, a.message)...)
	}
	switch {
	case q.text == "BEGIN" && a.number == 0:
		out = append(out, token(0xe3, []byte{envBegin, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0})...)
	case q.text == "COMMIT" && a.ended && a.number == 0:
		out = append(out, token(0xe3, append([]byte{envCommit, 0, 8}, make([]byte, 8)...))...)
	case a.ended:
		out = append(out, token(0xe3, append([]byte{envRollback, 0, 8}, make([]byte, 8)...))...)
	}
	if a.number != 0 {
		return append(out, done(tokenDone, doneError, 0)...)
	}
	if len(q.args) > 0 && len(a.sets) == 0 {
		out = append(out, done(tokenDoneInCall, doneMore|doneCount, a.affected)...)
	}
	return append(out, done(tokenDoneCall, 0, 0)...)
}

func encodeSet(set [][]any) (out []byte) {
	width := 0
	if len(set) > 0 {
		width = len(set[0])
	}
	out = binary.LittleEndian.AppendUint16([]byte{0x81}, uint16(max(width, 1)))
	for i := range max(width, 1) {
		out = append(out, 0, 0, 0, 0, 1, 0)
		if width == 0 {
			out = append(out, typeInt, 8)
		} else {
			out = append(out, encodeType(set[0][i])...)
		}
		out = append(out, 0) // no name
	}
	for _, row := range set {
		out = append(out, 0xd1)
		for _, value := range row {
			out = append(out, encodeValue(value)...)
		}
	}
	return out
}

func encodeType(value any) []byte {
	switch value.(type) {
	case string:
		return append([]byte{typeText, 0x40, 0x1f}, 0, 0, 0, 0, 0)
	case int64:
		return []byte{typeInt, 8}
	default:
		return []byte{typeBytes, 0x40, 0x1f}
	}
}

func encodeValue(value any) []byte {
	switch v := value.(type) {
	case string:
		return append(binary.LittleEndian.AppendUint16(nil, uint16(len(wide(v)))), wide(v)...)
	case int64:
		return binary.LittleEndian.AppendUint64([]byte{8}, uint64(v))
	case []byte:
		return append(binary.LittleEndian.AppendUint16(nil, uint16(len(v))), v...)
	case nil:
		return []byte{0xff, 0xff}
	default:
		panic(fmt.Sprintf("a value of type %T", value))
	}
}

func encodeError(number int32, message string) []byte {
	body := binary.LittleEndian.AppendUint32(nil, uint32(number))
	body = append(body, 1, 16)
	body = binary.LittleEndian.AppendUint16(body, uint16(len(wide(message))/2))
	body = append(body, wide(message)...)
	body = append(body, 0, 0, 1, 0, 0, 0) // no names of a server and of a procedure, line 1
	return token(0xaa, body)
}

func done(kind byte, status uint16, affected uint64) []byte {
	out := binary.LittleEndian.AppendUint16([]byte{kind}, status)
	out = append(out, 0, 0)
	return binary.LittleEndian.AppendUint64(out, affected)
}

func token(kind byte, body []byte) []byte {
	return append(binary.LittleEndian.AppendUint16([]byte{kind}, uint16(len(body))), body...)
}

func shortText(s string) []byte { return append([]byte{byte(len(s))}, wide(s)...) }

func wide(s string) (out []byte) {
	for _, unit := range utf16.Encode([]rune(s)) {
		out = binary.LittleEndian.AppendUint16(out, unit)
	}
	return out
}

func text(b []byte) string {
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return string(utf16.Decode(units))
}
