package cosmosstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

const defaultPage, largestPage = 100, 1000

// List returns records by the UUIDs of their keys. The gateway does not order
// across partitions, so List asks for a range of UUIDs that is narrow enough to be
// ordered here. It reads from any replica: what it returns may be behind, by as
// much as the consistency level allows.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	now, err := s.engine.now(ctx)
	if err != nil {
		return page, err
	}
	if q.UUID != [16]byte{} {
		return s.engine.listOne(ctx, q, now)
	}
	where, parameters := filter(q)
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	from := [16]byte{}
	if q.After != (once.Key{}) {
		from = q.After.UUID()
	}
	for r := s.engine.width.after(from); ; {
		var damaged []error
		rows, more, err := s.engine.query(ctx, where, largestPage, leaveOut(&damaged), append(parameters, parameter("@after", r.after), parameter("@to", r.to()))...)
		if err != nil {
			return page, err
		}
		if more {
			r.narrow()
			continue
		}
		page.Damaged = append(page.Damaged, damaged...)
		slices.SortFunc(rows, func(a, b cas.Row) int {
			x, y := a.Key.UUID(), b.Key.UUID()
			return bytes.Compare(x[:], y[:])
		})
		for i, row := range rows {
			page.Next = row.Key
			if rec := row.Record(now); cas.Selects(q, rec, now) {
				page.Records = append(page.Records, rec)
			}
			if len(page.Records) == limit && (i < len(rows)-1 || !r.isLast()) {
				return page, nil
			}
		}
		switch {
		case r.isLast():
			page.Next = once.Key{}
			return page, nil
		case len(rows) > 0:
			if len(rows) < largestPage>>(step+1) {
				r.width.widen(r.bits)
			}
			return page, nil
		}
		r = r.next()
	}
}

// listOne lists at most one record.
func (e *engine) listOne(ctx context.Context, q once.RecordQuery, now cas.Now) (page once.RecordPage, err error) {
	after := q.After.UUID()
	if q.After != (once.Key{}) && bytes.Compare(q.UUID[:], after[:]) <= 0 {
		return page, nil
	}
	rows, _, err := e.query(ctx, "c.once.uuid = @uuid", 1, leaveOut(&page.Damaged), parameter("@uuid", hex.EncodeToString(q.UUID[:])))
	if err != nil || len(rows) == 0 {
		return page, err
	}
	is, err := e.Load(ctx, rows[0].Key)
	if errors.Is(err, once.ErrCorrupt) {
		page.Damaged = append(page.Damaged, err)
		return page, nil
	}
	if rec := is.Record(now); err == nil && cas.Selects(q, rec, now) {
		rec.Outcome.Body = nil
		page.Records = []once.Record{rec}
	}
	return page, err
}

// filter returns the conditions of a query that the service can check: time
// changes the others.
func filter(q once.RecordQuery) (where string, parameters []azcosmos.QueryParameter) {
	where = "c.once.uuid > @after AND c.once.uuid <= @to"
	if cas.AsksOnlyForOpen(q) {
		where = "c.once.open > @after AND c.once.open <= @to"
	}
	if q.Operation != "" {
		where += " AND c.once.operation = @operation"
		parameters = append(parameters, parameter("@operation", q.Operation))
	}
	if q.Cause != [16]byte{} {
		where += " AND c.once.cause = @cause"
		parameters = append(parameters, parameter("@cause", hex.EncodeToString(q.Cause[:])))
	}
	if len(q.Scopes) > 0 {
		where += " AND ARRAY_CONTAINS(@scopes, c.once.scope)"
		parameters = append(parameters, parameter("@scopes", q.Scopes))
	}
	return where, parameters
}

func parameter(name string, value any) azcosmos.QueryParameter {
	return azcosmos.QueryParameter{Name: name, Value: value}
}

// leaveOut returns what a query does with an item that is not a record: it notes
// why, and goes on, because the rest must be found all the same. An item of an
// application may have properties like those of a record, and is no concern of it.
func leaveOut(damaged *[]error) func([]byte, error) {
	return func(text []byte, err error) {
		var is struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(text, &is) // the service returns JSON
		if strings.HasPrefix(is.ID, idPrefix) && !strings.HasPrefix(is.ID, docPrefix) {
			*damaged = append(*damaged, err)
		}
	}
}

// query returns at most limit records that a condition selects, without the
// bodies of their outcomes, and whether there are more. It calls damaged with each
// item that is not a record.
func (e *engine) query(ctx context.Context, where string, limit int, damaged func([]byte, error), parameters ...azcosmos.QueryParameter) (rows []cas.Row, more bool, err error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	pages := e.container.NewQueryItemsPager("SELECT c.id, c.once FROM c WHERE "+where, azcosmos.NewPartitionKey(), &azcosmos.QueryOptions{
		PageSizeHint: int32(min(limit, largestPage) + 1), QueryParameters: parameters})
	for pages.More() {
		sent := time.Now()
		page, err := pages.NextPage(ctx)
		e.learn(sent, page.RawResponse, err)
		if err != nil {
			return nil, false, err
		}
		for _, text := range page.Items {
			row, err := decode(text)
			if err != nil {
				damaged(text, err)
				continue
			}
			if len(rows) == limit {
				return rows, true, nil
			}
			rows = append(rows, row)
		}
	}
	return rows, false, nil
}

// width remembers how wide a range of UUIDs may be whose records fit into a page,
// as the number of bits by which it is narrower than all.
type width struct{ bits atomic.Int32 }

// step is by how many bits a range is made narrower, and wider again.
const step = 4

// interval is a range of UUIDs. Its bounds are the first 64 bits.
type interval struct {
	width *width
	bits  int32
	after string // the UUID
	first uint64 // its first bits
}

func (w *width) after(id [16]byte) *interval {
	return &interval{width: w, bits: w.bits.Load(), after: hex.EncodeToString(id[:]), first: binary.BigEndian.Uint64(id[:])}
}

// end returns the first bits of the last UUID of the range.
func (r *interval) end() uint64 {
	if size := uint64(math.MaxUint64) >> r.bits; r.first <= math.MaxUint64-size {
		return r.first + size
	}
	return math.MaxUint64
}

// next returns the range after an empty one.
func (r *interval) next() *interval {
	r.width.widen(r.bits)
	return &interval{width: r.width, bits: r.width.bits.Load(), after: r.to(), first: r.end()}
}

// narrow makes the range narrower, because it has too many records.
func (r *interval) narrow() {
	r.bits += step
	r.width.bits.Store(r.bits)
}

func (w *width) widen(bits int32) { w.bits.Store(max(bits-step, 0)) }

func (r *interval) isLast() bool { return r.end() == math.MaxUint64 }

// to returns the last UUID of the range.
func (r *interval) to() string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], r.end())
	binary.BigEndian.PutUint64(id[8:], math.MaxUint64)
	return hex.EncodeToString(id[:])
}
