package cosmosstore

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// item is a record as it is stored, besides the partition key.
type item struct {
	ID   string `json:"id"`
	TTL  int64  `json:"ttl"` // seconds; -1: never
	Once record `json:"once"`
	Body *body  `json:"onceBody,omitempty"` // of the outcome; apart, so that lists can omit it
}

type record struct {
	Format      int64  `json:"format,omitempty"` // see cas.Format
	Check       uint32 `json:"check,omitempty"`
	Scope       string `json:"scope"`
	Operation   string `json:"operation"`
	Key         string `json:"key"`
	UUID        string `json:"uuid"`
	Open        string `json:"open,omitempty"` // the UUID, if it is running, unknown or parked
	Status      string `json:"status"`         // as it was written: time may have changed it
	Attempt     int64  `json:"attempt"`
	Owner       string `json:"owner"`
	Cause       string `json:"cause,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Firm        bool   `json:"firm,omitempty"`

	Created      string `json:"created"`
	Updated      string `json:"updated"`
	Lease        string `json:"lease,omitempty"`
	KeepOutcome  string `json:"keepOutcome,omitempty"`
	KeepKey      string `json:"keepKey,omitempty"`
	OutcomeUntil string `json:"outcomeUntil,omitempty"` // KeepOutcome, if there is an outcome that Forget has to remove

	Outcome *outcome `json:"outcome,omitempty"`
}

type outcome struct {
	ContentType string `json:"contentType,omitempty"`
	Rejected    bool   `json:"rejected,omitempty"`
	Omitted     bool   `json:"omitted,omitempty"`
	Sum         uint32 `json:"sum"`
}

// body is that of an outcome.
type body struct {
	Text  *string `json:"text,omitempty"`  // if it is text
	Bytes []byte  `json:"bytes,omitempty"` // if not
}

const idPrefix = "once-"

func itemID(id [16]byte) string { return idPrefix + hex.EncodeToString(id[:]) }

// encode returns the item of a row.
func encode(row cas.Row, id, property, partition string, now cas.Now) ([]byte, error) {
	uuid := id[len(idPrefix):]
	it := item{ID: id, TTL: timeToLive(row, now), Once: record{
		Scope: row.Key.Scope, Operation: row.Key.Operation, Key: row.Key.ID, UUID: uuid,
		Status: row.Status.String(), Attempt: row.Attempt, Owner: hex.EncodeToString(row.Owner[:]),
		Fingerprint: hex.EncodeToString(row.Fingerprint), Reason: row.Reason, Firm: row.Firm,
		Created: text(row.Created), Updated: text(row.Updated), Lease: text(row.Lease),
		KeepOutcome: text(row.KeepOutcome), KeepKey: text(row.KeepKey),
	}}
	if row.Cause != [16]byte{} {
		it.Once.Cause = hex.EncodeToString(row.Cause[:])
	}
	if row.Open() {
		it.Once.Open = uuid
	}
	switch {
	case row.Status != once.Done:
	case isPastOutcome(row, now):
		it.Once.KeepOutcome = "" // for processes to which it is not over yet: there is no outcome
		row.KeepOutcome, row.Outcome = 0, once.Outcome{}
	default:
		if row.KeepOutcome < row.KeepKey {
			it.Once.OutcomeUntil = it.Once.KeepOutcome
		}
		out := row.Outcome
		it.Once.Outcome = &outcome{ContentType: out.ContentType, Rejected: out.Rejected, Omitted: out.Omitted, Sum: out.Sum}
		if isText(out.Body) {
			text := string(out.Body)
			it.Body = &body{Text: &text}
		} else {
			it.Body = &body{Bytes: out.Body}
		}
	}
	it.Once.Format, it.Once.Check = cas.Format, row.Check()
	item, err := json.Marshal(it)
	if err != nil {
		return nil, err
	}
	return within(item, property, partition)
}

// within adds the partition key to an item.
func within(item []byte, property, partition string) ([]byte, error) {
	if property == "id" {
		return item, nil
	}
	own, err := json.Marshal(map[string]string{property: partition})
	if err != nil {
		return nil, err
	}
	own[len(own)-1] = ','
	return append(own, item[1:]...), nil
}

// isPastOutcome reports whether the outcome of a row has expired.
func isPastOutcome(row cas.Row, now cas.Now) bool {
	return row.Status == once.Done && now.Passed(row.KeepOutcome)
}

// timeToLive returns after how many seconds the service may delete the item of a
// row. The service counts from the second in which it writes the item, which began
// before the earliest time that it may be now.
func timeToLive(row cas.Row, now cas.Now) int64 {
	at, ok := row.Expires()
	if !ok {
		return -1
	}
	return secondsUntil(at, now)
}

func secondsUntil(at cas.Instant, now cas.Now) int64 {
	seconds := max(now.AtMostUntil(at), 0)/time.Second + 2
	if seconds > math.MaxInt32 {
		return -1
	}
	return int64(seconds)
}

func isText(body []byte) bool { return utf8.Valid(body) && bytes.IndexByte(body, 0) < 0 }

// layout sorts as the times do.
const layout = "2006-01-02T15:04:05.000000Z"

// latest is the last time that the layout has, and stands for all that are later.
var latest = cas.Instant(time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC).UnixMicro())

func text(i cas.Instant) string {
	if i == 0 {
		return ""
	}
	return min(i, latest).Time().UTC().Format(layout)
}

var statuses = map[string]once.Status{}

func init() {
	for is := once.Absent; is <= once.Done; is++ {
		statuses[is.String()] = is
	}
}

// decode returns the row of an item. A row from a list has no body.
func decode(text []byte) (cas.Row, error) {
	var it item
	if err := json.Unmarshal(text, &it); err != nil {
		return cas.Row{}, fmt.Errorf("%w: an item is not a record: %w", once.ErrCorrupt, err)
	}
	var d decoder
	r := it.Once
	row := cas.Row{
		Key:    once.Key{Scope: r.Scope, Operation: r.Operation, ID: r.Key},
		Status: statuses[r.Status], Attempt: r.Attempt, Reason: r.Reason, Firm: r.Firm, Fingerprint: d.bytes(r.Fingerprint),
		Created: d.time(r.Created), Updated: d.time(r.Updated), Lease: d.time(r.Lease),
		KeepOutcome: d.time(r.KeepOutcome), KeepKey: d.time(r.KeepKey),
	}
	d.fill(&row.Owner, r.Owner)
	if r.Cause != "" {
		d.fill(&row.Cause, r.Cause)
	}
	if out := r.Outcome; out != nil {
		row.Outcome = once.Outcome{ContentType: out.ContentType, Rejected: out.Rejected, Omitted: out.Omitted, Sum: out.Sum}
	}
	if is := it.Body; is != nil {
		if row.Outcome.Body = is.Bytes; is.Text != nil {
			row.Outcome.Body = []byte(*is.Text)
		}
	}
	_, known := statuses[r.Status]
	switch is := row.Key.UUID(); {
	case d.err != nil:
	case !known || row.Attempt < 1:
		d.err = fmt.Errorf("it has the status %q and the attempt %d", r.Status, r.Attempt)
	case r.UUID != hex.EncodeToString(is[:]):
		d.err = fmt.Errorf("it has the parts of another key: %q, %q, %q", r.Scope, r.Operation, r.Key)
	}
	if d.err != nil {
		return cas.Row{}, fmt.Errorf("%w: the item of the record %s: %w", once.ErrCorrupt, r.UUID, d.err)
	}
	if err := row.Verify(r.Format, r.Check); err != nil {
		return cas.Row{}, err
	}
	return row, nil
}

// decoder keeps the first error.
type decoder struct{ err error }

func (d *decoder) note(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) bytes(text string) []byte {
	if text == "" {
		return nil
	}
	is, err := hex.DecodeString(text)
	d.note(err)
	return is
}

func (d *decoder) fill(to *[16]byte, text string) {
	if is := d.bytes(text); copy(to[:], is) != len(to) || len(is) != len(to) {
		d.note(fmt.Errorf("%q is not 16 bytes", text))
	}
}

func (d *decoder) time(text string) cas.Instant {
	if text == "" {
		return 0
	}
	at, err := time.Parse(layout, text)
	d.note(err)
	if is := cas.Instant(at.UnixMicro()); is < latest {
		return is
	}
	return math.MaxInt64
}
