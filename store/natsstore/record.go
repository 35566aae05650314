package natsstore

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// recordHeader has a record without the body of its outcome, which is the body
// of the message.
const recordHeader = "Once-Record"

// record is a row as the header has it. Times are in microseconds since 1970.
type record struct {
	Format      int64   `json:"format,omitempty"` // see cas.Format
	Check       uint32  `json:"check,omitempty"`
	Scope       string  `json:"scope"`
	Operation   string  `json:"operation"`
	ID          string  `json:"id"`
	Status      string  `json:"status"`
	Attempt     int64   `json:"attempt"`
	Owner       token   `json:"owner"`
	Cause       token   `json:"cause,omitzero"`
	Fingerprint []byte  `json:"fingerprint,omitempty"`
	Reason      string  `json:"reason,omitempty"`
	ContentType string  `json:"content_type,omitempty"`
	Rejected    bool    `json:"rejected,omitempty"`
	Omitted     bool    `json:"omitted,omitempty"`
	Sum         uint32  `json:"sum,omitempty"`
	Created     instant `json:"created"`
	Updated     instant `json:"updated"`
	Lease       instant `json:"lease"`
	KeepOutcome instant `json:"keep_outcome,omitzero"`
	KeepKey     instant `json:"keep_key,omitzero"`
	Firm        bool    `json:"firm,omitempty"`
}

// instant is a number. The first builds wrote it as text.
type instant cas.Instant

func (i *instant) UnmarshalJSON(text []byte) error {
	if len(text) == 0 || text[0] != '"' {
		return json.Unmarshal(text, (*int64)(i))
	}
	var at time.Time
	err := json.Unmarshal(text, &at)
	if !at.IsZero() {
		*i = instant(at.UnixMicro())
	}
	return err
}

// token is 16 bytes in hexadecimal digits.
type token [16]byte

func (t token) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, t[:]), nil }

func (t *token) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(t) {
		return fmt.Errorf("%q is not %d digits long", text, hex.EncodedLen(len(t)))
	}
	_, err := hex.Decode(t[:], text)
	return err
}

var statuses = []once.Status{once.Absent, once.Running, once.Unknown, once.Parked, once.Done}

// header returns the header of a row.
func header(r cas.Row) (string, error) {
	text, err := json.Marshal(record{
		Format: cas.Format, Check: r.Check(),
		Scope: r.Key.Scope, Operation: r.Key.Operation, ID: r.Key.ID,
		Status: r.Status.String(), Attempt: r.Attempt, Owner: r.Owner, Cause: r.Cause, Fingerprint: r.Fingerprint,
		Reason:      strings.ToValidUTF8(r.Reason, "?"),
		ContentType: r.Outcome.ContentType, Rejected: r.Outcome.Rejected, Omitted: r.Outcome.Omitted, Sum: r.Outcome.Sum,
		Created: instant(r.Created), Updated: instant(r.Updated), Lease: instant(r.Lease),
		KeepOutcome: instant(r.KeepOutcome), KeepKey: instant(r.KeepKey), Firm: r.Firm,
	})
	return string(text), err
}

// readRow reads the row of a key from its message.
func readRow(m *jetstream.RawStreamMsg, id [16]byte) (row cas.Row, err error) {
	var r record
	if err := json.Unmarshal([]byte(m.Header.Get(recordHeader)), &r); err != nil {
		return row, fmt.Errorf("%w: message %d of %s: its header %s: %w", once.ErrCorrupt, m.Sequence, m.Subject, recordHeader, err)
	}
	row = cas.Row{
		Key:     once.Key{Scope: r.Scope, Operation: r.Operation, ID: r.ID},
		Status:  -1,
		Attempt: r.Attempt, Owner: r.Owner, Cause: r.Cause, Fingerprint: r.Fingerprint, Reason: r.Reason,
		Created: cas.Instant(r.Created), Updated: cas.Instant(r.Updated), Lease: cas.Instant(r.Lease),
		KeepOutcome: cas.Instant(r.KeepOutcome), KeepKey: cas.Instant(r.KeepKey), Firm: r.Firm,
	}
	for _, status := range statuses {
		if r.Status == status.String() {
			row.Status = status
		}
	}
	if row.Status == once.Done {
		row.Outcome = once.Outcome{Body: m.Data, ContentType: r.ContentType, Rejected: r.Rejected, Omitted: r.Omitted, Sum: r.Sum}
	}
	switch {
	case row.Status < 0:
		err = fmt.Errorf("%w: message %d of %s has the status %q", once.ErrCorrupt, m.Sequence, m.Subject, r.Status)
	case row.Key.UUID() != id || row.Attempt < 1:
		err = fmt.Errorf("%w: message %d of %s has attempt %d, and the parts of another key: %q, %q, %q", once.ErrCorrupt,
			m.Sequence, m.Subject, row.Attempt, r.Scope, r.Operation, r.ID)
	default:
		err = row.Verify(r.Format, r.Check)
	}
	return row, err
}

// newMessage returns a message for a row.
func newMessage(subject string, row cas.Row) (*nats.Msg, error) {
	if !utf8.ValidString(row.Outcome.ContentType) {
		return nil, fmt.Errorf("%w: natsstore: the content type %q is not UTF-8", once.ErrOutcomeRefused, row.Outcome.ContentType)
	}
	text, err := header(row)
	if err != nil {
		return nil, err
	}
	m := nats.NewMsg(subject)
	m.Header[recordHeader] = []string{text}
	m.Data = row.Outcome.Body
	return m, nil
}
