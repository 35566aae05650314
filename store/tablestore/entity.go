package tablestore

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// RowKeys of the store's entities.
const (
	reserved   = "once-"
	keyPrefix  = reserved + "key-"
	openPrefix = reserved + "open-"

	docPrefix    = reserved + "doc-"
	longPrefix   = reserved + "long-" // and a digest, if the name is long
	intentPrefix = reserved + "intent-"
)

// Partitions of the store's own.
const (
	docsPartition = reserved + "docs"
	outPartition  = reserved + "out"
)

// mayBeDue is a filter for the entities that have a time.
const mayBeDue = "RowKey ge '" + docPrefix + "' and RowKey lt 'once-long.'"

// isKey is a filter for the entities of keys.
const isKey = "RowKey ge '" + keyPrefix + "' and RowKey lt 'once-key.'"

// Limits of Table storage: an entity has 1 MiB, and a property 64 KiB. A string
// is stored in UTF-16. The emulator counts a body in base64, which is longer by a
// third.
const (
	partSize   = 64 << 10
	maxOutcome = 11 * partSize
	maxBody    = maxOutcome + 16<<10 // sealed
	maxText    = 32 << 10
)

func digest(id [16]byte) string { return hex.EncodeToString(id[:]) }

// forEver is the last time that a DateTime can have.
var forEver = cas.Instant(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMicro())

func formatTime(i cas.Instant) string {
	return min(i, forEver).Time().UTC().Format("2006-01-02T15:04:05.000000Z")
}

// dateTime returns an instant as a literal of a filter.
func dateTime(i cas.Instant) string { return "datetime'" + formatTime(i) + "'" }

// properties collects those of an entity.
type properties map[string]any

func (p properties) typed(name, kind, value string) {
	p[name], p[name+"@odata.type"] = value, kind
}

func (p properties) number(name string, n int64) {
	p.typed(name, "Edm.Int64", strconv.FormatInt(n, 10))
}

func (p properties) time(name string, at cas.Instant) {
	if at != 0 {
		p.typed(name, "Edm.DateTime", formatTime(at))
	}
}

func (p properties) binary(name string, value []byte) {
	p.typed(name, "Edm.Binary", base64.StdEncoding.EncodeToString(value))
}

// encode returns the entity of a row.
func encode(row cas.Row, partition string) ([]byte, error) {
	out := row.Outcome
	if len(out.Body) > maxBody || len(out.ContentType) > maxText {
		return nil, fmt.Errorf("%w: tablestore: its body has %d bytes, and its content type %d: an entity takes %d and %d",
			once.ErrOutcomeRefused, len(out.Body), len(out.ContentType), maxBody, maxText)
	}
	p := properties{
		"PartitionKey": partition, "RowKey": keyPrefix + digest(row.Key.UUID()),
		"Scope": row.Key.Scope, "Operation": row.Key.Operation, "ID": row.Key.ID,
		"Status": row.Status.String(), "Open": row.Open(), "Owner": digest(row.Owner), "Reason": row.Reason,
	}
	p.number("Format", cas.Format)
	p.number("Check", int64(row.Check()))
	p.number("Attempt", row.Attempt)
	if row.Cause != [16]byte{} {
		p["Cause"] = digest(row.Cause)
	}
	if len(row.Fingerprint) > 0 {
		p.binary("Fingerprint", row.Fingerprint)
	}
	if row.Firm {
		p["Firm"] = true
	}
	p.time("Created", row.Created)
	p.time("Updated", row.Updated)
	p.time("Lease", row.Lease)
	p.time("KeepOutcome", row.KeepOutcome)
	p.time("KeepKey", row.KeepKey)
	if due, ok := row.Expires(); ok {
		if row.Status == once.Done && row.KeepOutcome != 0 {
			due = min(due, row.KeepOutcome)
		}
		p.time("Due", due)
	}
	if row.Status == once.Done {
		p["ContentType"], p["Rejected"], p["Omitted"] = out.ContentType, out.Rejected, out.Omitted
		p.number("Sum", int64(out.Sum))
		part := 0
		for chunk := range slices.Chunk(out.Body, partSize) {
			p.binary(partName(part), chunk)
			part++
		}
	}
	return json.Marshal(p)
}

func partName(n int) string { return fmt.Sprintf("Body%02d", n) }

// reader reads properties, and notes the first one that is not as encode wrote
// it.
type reader struct {
	all map[string]any
	bad string
}

func read[T any](r *reader, name string, required bool) (value T) {
	raw, ok := r.all[name]
	if !ok && !required {
		return value
	}
	if value, ok = raw.(T); !ok && r.bad == "" {
		r.bad = name
	}
	return value
}

func (r *reader) id(name string, required bool) (id [16]byte) {
	text := read[string](r, name, required)
	raw, err := hex.DecodeString(text)
	if text != "" && (err != nil || len(raw) != len(id)) && r.bad == "" {
		r.bad = name
	}
	copy(id[:], raw)
	return id
}

func (r *reader) time(name string) cas.Instant {
	if _, ok := r.all[name]; !ok {
		return 0
	}
	at := cas.Instant(time.Time(read[aztables.EDMDateTime](r, name, true)).UnixMicro())
	if at >= forEver {
		return math.MaxInt64
	}
	return at
}

// decode returns the row of an entity.
func decode(text []byte) (is cas.Stored, err error) {
	var e aztables.EDMEntity
	if err := json.Unmarshal(text, &e); err != nil {
		return is, fmt.Errorf("%w: tablestore: %w", once.ErrCorrupt, err)
	}
	r := &reader{all: e.Properties}
	row := cas.Row{
		Key: once.Key{
			Scope: read[string](r, "Scope", false), Operation: read[string](r, "Operation", true), ID: read[string](r, "ID", true),
		},
		Attempt:     int64(read[aztables.EDMInt64](r, "Attempt", true)),
		Owner:       r.id("Owner", true),
		Cause:       r.id("Cause", false),
		Fingerprint: bytes.Clone(read[aztables.EDMBinary](r, "Fingerprint", false)),
		Reason:      read[string](r, "Reason", false),
		Created:     r.time("Created"),
		Updated:     r.time("Updated"),
		Lease:       r.time("Lease"),
		KeepOutcome: r.time("KeepOutcome"),
		KeepKey:     r.time("KeepKey"),
		Firm:        read[bool](r, "Firm", false),
	}
	status := read[string](r, "Status", true)
	if row.Status = statusOf(status); row.Status < 0 && r.bad == "" {
		r.bad = "Status"
	}
	if row.Status == once.Done {
		row.Outcome = once.Outcome{
			ContentType: read[string](r, "ContentType", false),
			Rejected:    read[bool](r, "Rejected", false),
			Omitted:     read[bool](r, "Omitted", false),
			Sum:         uint32(read[aztables.EDMInt64](r, "Sum", true)),
		}
		for part := 0; e.Properties[partName(part)] != nil; part++ {
			row.Outcome.Body = append(row.Outcome.Body, read[aztables.EDMBinary](r, partName(part), true)...)
		}
	}
	switch {
	case r.bad != "":
		return is, fmt.Errorf("%w: tablestore: the property %s of the entity %s in the partition %q is missing or damaged", once.ErrCorrupt,
			r.bad, e.RowKey, e.PartitionKey)
	case e.RowKey != keyPrefix+digest(row.Key.UUID()):
		return is, fmt.Errorf("%w: tablestore: the entity %s in the partition %q has the parts of another key", once.ErrCorrupt,
			e.RowKey, e.PartitionKey)
	case e.ETag == "":
		return is, fmt.Errorf("%w: tablestore: the entity %s has no ETag", once.ErrCorrupt, e.RowKey)
	}
	if err := row.Verify(int64(read[aztables.EDMInt64](r, "Format", false)), uint32(read[aztables.EDMInt64](r, "Check", false))); err != nil {
		return is, err
	}
	return cas.Stored{Row: row, Version: version(row.Open(), azcore.ETag(e.ETag))}, nil
}

// statusOf returns the status that is written like this, or -1.
func statusOf(text string) once.Status {
	for s := once.Absent; s <= once.Done; s++ {
		if s.String() == text {
			return s
		}
	}
	return -1
}

func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a map of strings
	}
	return text
}

// rowKey returns the RowKey of an entity.
func rowKey(text []byte) (string, error) {
	var is struct{ RowKey string }
	if err := json.Unmarshal(text, &is); err != nil {
		return "", fmt.Errorf("%w: tablestore: %w", once.ErrCorrupt, err)
	}
	return is.RowKey, nil
}
