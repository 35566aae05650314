package redisbroker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
)

// The fields of an entry.
const (
	fieldID   = "id"
	fieldKey  = "key"
	fieldTime = "time"
	fieldBody = "body"

	headerPrefix = "h." // before the name of a header
)

// The headers of a dead letter.
const (
	reasonHeader = broker.ReasonHeader
	topicHeader  = broker.TopicHeader // the original stream
	originHeader = broker.OriginHeader
)

// longestReason is the maximum length of a reason in a header, in bytes.
const longestReason = 1000

// encode checks a message and returns its fields, which share its body.
func encode(m *broker.Message) ([]any, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	fields := make([]any, 0, 8+2*len(m.Header))
	fields = append(fields, fieldID, m.ID)
	if m.OrderingKey != "" {
		fields = append(fields, fieldKey, m.OrderingKey)
	}
	if !m.Time.IsZero() {
		fields = append(fields, fieldTime, m.Time.UTC().Format(time.RFC3339Nano))
	}
	if len(m.Body) > 0 {
		fields = append(fields, fieldBody, m.Body)
	}
	for _, header := range slices.Sorted(maps.Keys(m.Header)) {
		fields = append(fields, headerPrefix+header, m.Header[header])
	}
	return fields, nil
}

// decode returns an entry from any publisher as a message.
func decode(stream string, id entryID, fields map[string]string) *broker.Message {
	m := &broker.Message{ID: fields[fieldID], Topic: stream, OrderingKey: fields[fieldKey], Time: time.UnixMilli(int64(id.ms)).UTC()}
	if body := fields[fieldBody]; body != "" {
		m.Body = []byte(body)
	}
	if t, err := time.Parse(time.RFC3339Nano, fields[fieldTime]); err == nil {
		m.Time = t
	}
	header := make(map[string]string)
	for field, value := range fields {
		switch field {
		case fieldID, fieldKey, fieldTime, fieldBody:
			continue
		}
		if name, own := strings.CutPrefix(field, headerPrefix); own {
			header[name] = value
			continue
		}
		// A field of another program does not hide a header.
		lower := strings.ToLower(field)
		if _, own := fields[headerPrefix+lower]; !own {
			header[lower] = value
		}
	}
	maps.DeleteFunc(header, func(name, _ string) bool { return broker.IsField(name) })
	if len(header) > 0 {
		m.Header = header
	}
	return m
}

// deadLetter returns the fields of a dead letter.
func deadLetter(a *arrival, stream, reason string) []any {
	fields := maps.Clone(a.fields)
	if reason = name.Line(strings.Join(strings.Fields(reason), " "), longestReason); reason != "" {
		fields[headerPrefix+reasonHeader] = reason
	}
	fields[headerPrefix+topicHeader] = stream
	fields[headerPrefix+originHeader] = origin(stream, a.id)
	out := make([]any, 0, 2*len(fields))
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		out = append(out, field, fields[field])
	}
	return out
}

func origin(stream string, id entryID) string { return stream + "@" + id.String() }

// entryID is the ID of an entry: the milliseconds of its time, and a number.
type entryID struct{ ms, seq uint64 }

func parseEntryID(text string) (id entryID, err error) {
	ms, seq, _ := strings.Cut(text, "-")
	if id.ms, err = strconv.ParseUint(ms, 10, 64); err == nil {
		id.seq, err = strconv.ParseUint(seq, 10, 64)
	}
	if err != nil {
		return entryID{}, fmt.Errorf("redisbroker: the server names an entry %.60q", text)
	}
	return id, nil
}

func (id entryID) String() string {
	return strconv.FormatUint(id.ms, 10) + "-" + strconv.FormatUint(id.seq, 10)
}

// compare compares IDs in the order of the stream.
func (id entryID) compare(other entryID) int {
	return cmp.Or(cmp.Compare(id.ms, other.ms), cmp.Compare(id.seq, other.seq))
}

// after reports whether id is that of a later entry.
func (id entryID) after(other entryID) bool { return id.compare(other) > 0 }
