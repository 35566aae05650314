package natsstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
	"github.com/nats-io/nats.go/jetstream"
)

const defaultPage, largestPage, maxLooks = 100, 1000, 1000

// List returns records that are Running, Unknown or Parked, by the UUIDs of their
// keys. There is no index of the others, so a query that may select them is
// [once.ErrInvalid]: name statuses, or one key by its UUID. A page reads at most
// 1,000 records, and the names of those in a sixteenth of the bucket at a time.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	now, err := s.bucket.clock.Now(ctx)
	if err != nil {
		return page, err
	}
	if q.UUID != [16]byte{} {
		return s.listOne(ctx, q, now)
	}
	if !cas.AsksOnlyForOpen(q) {
		return page, fmt.Errorf("%w: natsstore lists only records that are running, unknown or parked: ask for these statuses",
			once.ErrInvalid)
	}
	after := ""
	if q.After != (once.Key{}) {
		after = digitsOf(q.After.UUID())
	}
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	for looks := 0; looks < maxLooks || page.Next == (once.Key{}); {
		rows, last, damaged, err := s.bucket.openAfter(ctx, after, max(limit, defaultPage))
		if err != nil {
			return page, err
		}
		page.Damaged = append(page.Damaged, damaged...)
		for _, row := range rows {
			rec := row.Record(now)
			if page.Next = row.Key; cas.Selects(q, rec, now) {
				page.Records = append(page.Records, rec)
			}
			if len(page.Records) == limit {
				return page, nil
			}
		}
		if last == "" {
			page.Next = once.Key{}
			return page, nil
		}
		after = last
		looks += max(limit, defaultPage)
	}
	return page, nil
}

// listOne lists at most one record.
func (s *Store) listOne(ctx context.Context, q once.RecordQuery, now cas.Now) (page once.RecordPage, err error) {
	is, err := s.bucket.load(ctx, q.UUID)
	if errors.Is(err, once.ErrCorrupt) {
		page.Damaged = []error{err}
		return page, nil
	}
	if err != nil || q.After != (once.Key{}) && digitsOf(q.UUID) <= digitsOf(q.After.UUID()) {
		return page, err
	}
	rec := is.Record(now)
	if rec.Outcome.Body = nil; cas.Selects(q, rec, now) {
		page.Records = []once.Record{rec}
	}
	return page, nil
}

// openAfter returns open rows whose digits are greater than after. It looks at
// limit keys, of which last are the digits of the last, or at fewer if there are
// no more. Then last is empty. damaged is why some cannot be read. It deletes
// messages that settlements have left behind.
func (b *bucket) openAfter(ctx context.Context, after string, limit int) (rows []cas.Row, last string, damaged []error, err error) {
	all, damaged, err := b.openDigits(ctx, after, limit)
	if err != nil {
		return nil, "", nil, err
	}
	found := make([]cas.Stored, len(all))
	errs := make([]error, len(all))
	var readers sync.WaitGroup
	for first := range min(len(all), concurrentReads) {
		readers.Go(func() {
			for i := first; i < len(all); i += concurrentReads {
				id, _ := hex.DecodeString(all[i])
				found[i], errs[i] = b.load(ctx, [16]byte(id))
			}
		})
	}
	readers.Wait()
	for i, is := range found {
		switch {
		case errors.Is(errs[i], once.ErrCorrupt):
			damaged = append(damaged, errs[i])
		case errs[i] != nil:
			return nil, "", nil, errs[i]
		case is.Open():
			rows = append(rows, is.Row)
		case is.Version != "":
			if err := b.removeBefore(ctx, all[i], is.Version); err != nil {
				return nil, "", nil, err
			}
		}
	}
	if len(all) == limit {
		last = all[limit-1]
	}
	return rows, last, damaged, nil
}

const concurrentReads = 16

// openDigits returns the digits of open keys, in their order.
func (b *bucket) openDigits(ctx context.Context, after string, limit int) (all []string, damaged []error, err error) {
	const hexDigits = "0123456789abcdef"
	first := 0
	if after != "" {
		first = strings.Index(hexDigits, after[:1])
	}
	for _, digit := range hexDigits[first:] {
		filter := b.subject(open + "." + string(digit) + ".>")
		info, err := within(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
			return (*b.stream.Load()).Info(ctx, jetstream.WithSubjectFilter(filter))
		})
		if err != nil {
			return nil, nil, fmt.Errorf("natsstore: list %s: %w", filter, err)
		}
		from := len(all)
		for subject := range info.State.Subjects {
			digits := strings.TrimPrefix(subject, filter[:len(filter)-1])
			if n, err := hex.DecodeString(digits); err != nil || len(n) != 16 {
				damaged = append(damaged, fmt.Errorf("%w: natsstore: the bucket %s has the subject %s", once.ErrCorrupt, b.name, subject))
				continue
			}
			if digits > after {
				all = append(all, digits)
			}
		}
		if slices.Sort(all[from:]); len(all) >= limit {
			return all[:limit], damaged, nil
		}
	}
	return all, damaged, nil
}

// removeBefore deletes the message of an open row that was replaced by a later
// one of the other kind.
func (b *bucket) removeBefore(ctx context.Context, digits, version string) error {
	left, err := b.latest(ctx, b.of(open, digits))
	if left == nil || err != nil {
		return err
	}
	if latest, err := strconv.ParseUint(version, 10, 64); err == nil && left.Sequence < latest {
		b.remove(strconv.FormatUint(left.Sequence, 10))
	}
	return nil
}

// sweep looks at some of the open rows, and at the next ones when it is called
// again, to delete what settlements have left behind.
func (b *bucket) sweep(ctx context.Context, limit int) error {
	if _, err := b.clock.Now(ctx); err != nil {
		return err
	}
	after := ""
	if swept := b.swept.Load(); swept != nil {
		after = *swept
	}
	_, last, _, err := b.openAfter(ctx, after, min(limit, maxLooks))
	if err == nil {
		b.swept.Store(&last)
	}
	return err
}
