package tablestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

const (
	defaultPage, largestPage = 100, 1000
	maxLooks                 = 1000 // records that a page looks at, and then those of its last request
	parallel                 = 16   // requests at once
)

// List returns records that are Running, Unknown or Parked, by their partition
// and digest. There is no index of the others, so a query that may select them is
// [once.ErrInvalid]: name statuses, or one key by its UUID.
//
// With the default partitions, a page makes up to 256 requests for what is open,
// and one for each record that it looks at, of which there are fewer than 2,000.
// With [Options.Partition], the service reads the table, or the rest of it, until
// it has found the records of a page.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	if q.UUID == [16]byte{} && !cas.AsksOnlyForOpen(q) {
		return page, fmt.Errorf("%w: tablestore lists only records that are running, unknown or parked: ask for these statuses",
			once.ErrInvalid)
	}
	now, err := s.engine.clock.Now(ctx)
	if err = errors.Join(ctx.Err(), err); err != nil {
		return page, err
	}
	l := &lister{engine: s.engine, now: now, query: q, limit: min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)}
	switch {
	case q.UUID != [16]byte{}:
		err = l.one(ctx)
	case s.engine.partition == nil:
		err = l.index(ctx)
	default:
		err = l.scan(ctx)
	}
	return l.page, err
}

// lister makes a page.
type lister struct {
	*engine
	now   cas.Now
	query once.RecordQuery
	limit int
	page  once.RecordPage
}

// add adds the record of a row, if the query selects it. It returns false when
// the page is full.
func (l *lister) add(is cas.Stored) bool {
	rec := is.Record(l.now)
	rec.Outcome.Body = nil
	if cas.Selects(l.query, rec, l.now) {
		l.page.Records = append(l.page.Records, rec)
	}
	l.page.Next = is.Key
	return len(l.page.Records) < l.limit
}

// one lists at most the record that the query names.
func (l *lister) one(ctx context.Context) (err error) {
	id, is := l.query.UUID, cas.Stored{}
	if l.partition == nil {
		is, err = l.load(ctx, defaultPartition(id), id)
	} else {
		is, err = l.find(ctx, id)
	}
	if errors.Is(err, once.ErrCorrupt) {
		l.page.Damaged, err = append(l.page.Damaged, err), nil
	}
	if err == nil && is.Version != "" && (l.query.After == once.Key{} || l.isAfter(is.Key)) {
		l.add(is)
	}
	l.page.Next = once.Key{}
	return err
}

// isAfter reports whether a key comes after the query's After.
func (l *lister) isAfter(k once.Key) bool {
	at, err := l.partitionOf(k)
	after, afterErr := l.partitionOf(l.query.After)
	return err == nil && afterErr == nil && cmp.Or(strings.Compare(at, after), strings.Compare(digest(k.UUID()), digest(l.query.After.UUID()))) > 0
}

// find finds a row in any partition.
func (l *lister) find(ctx context.Context, id [16]byte) (is cas.Stored, err error) {
	var found []cas.Stored
	for at := (place{}); len(found) == 0 && err == nil; {
		if found, at, err = l.rows(ctx, fmt.Sprintf("RowKey eq '%s%s'", keyPrefix, digest(id)), at); at == (place{}) {
			break
		}
	}
	if len(found) > 0 {
		return found[0], nil
	}
	return is, err
}

func (l *lister) rows(ctx context.Context, filter string, from place) ([]cas.Stored, place, error) {
	return l.engine.query(ctx, filter, from, largestPage)
}

// scan lists what the table has after the query's After.
func (l *lister) scan(ctx context.Context) error {
	filters := []string{isKey + " and Open eq true"}
	if l.query.After != (once.Key{}) {
		partition, err := l.partitionOf(l.query.After)
		if err != nil {
			return err
		}
		filters = []string{
			fmt.Sprintf("PartitionKey eq '%s' and RowKey gt '%s%s' and RowKey lt 'once-key.' and Open eq true", partition, keyPrefix,
				digest(l.query.After.UUID())),
			fmt.Sprintf("PartitionKey gt '%s' and %s and Open eq true", partition, isKey),
		}
	}
	looks := 0
	for _, filter := range filters {
		for at := (place{}); ; {
			found, next, err := l.rows(ctx, filter, at)
			if errors.Is(err, once.ErrCorrupt) {
				l.page.Damaged = append(l.page.Damaged, err)
			} else if err != nil {
				return err
			}
			for _, is := range found {
				if !l.add(is) {
					return nil
				}
			}
			if looks += len(found); looks >= maxLooks && l.page.Next != (once.Key{}) {
				return nil
			}
			if at = next; at == (place{}) {
				break
			}
		}
	}
	l.page.Next = once.Key{}
	return nil
}

// index lists what the index entities of the partitions name.
func (l *lister) index(ctx context.Context) error {
	first, after := 0, ""
	if l.query.After != (once.Key{}) {
		id := l.query.After.UUID()
		first, after = int(id[0]), digest(id)
	}
	batch := max(l.limit, defaultPage) // a small page may have to look at many records
	for looks := 0; first < partitions; {
		some := min(parallel, partitions-first)
		ids := make([][]string, some)
		err := inParallel(some, func(i int) (err error) {
			from := openPrefix
			if i == 0 && after != "" {
				from += after
			}
			ids[i], err = l.openIn(ctx, fmt.Sprintf("%02x", first+i), from, batch)
			return err
		})
		if err != nil {
			return err
		}
		for i := range ids {
			for len(ids[i]) > 0 {
				next := ids[i][:min(len(ids[i]), batch)]
				rows := make([]cas.Stored, len(next))
				damaged := make([]error, len(next))
				err := inParallel(len(next), func(j int) (err error) {
					if rows[j], err = l.loadDigest(ctx, next[j]); errors.Is(err, once.ErrCorrupt) {
						damaged[j], err = err, nil
					}
					return err
				})
				if err != nil {
					return err
				}
				for j, is := range rows {
					if damaged[j] != nil {
						l.page.Damaged = append(l.page.Damaged, damaged[j])
					}
					if is.Version != "" && !l.add(is) {
						return nil
					}
				}
				full := len(ids[i]) >= batch // there may be more in this partition
				after, ids[i] = next[len(next)-1], ids[i][len(next):]
				if looks += len(next); looks >= maxLooks && l.page.Next != (once.Key{}) {
					return nil
				}
				if full && len(ids[i]) == 0 {
					if ids[i], err = l.openIn(ctx, fmt.Sprintf("%02x", first+i), openPrefix+after, batch); err != nil {
						return err
					}
				}
			}
		}
		first, after = first+some, ""
	}
	l.page.Next = once.Key{}
	return nil
}

// partitions is how many there are by default.
const partitions = 256

// openIn returns the digests of open keys in a partition, after a RowKey.
func (l *lister) openIn(ctx context.Context, partition, after string, limit int) (digests []string, err error) {
	filter := fmt.Sprintf("PartitionKey eq '%s' and RowKey gt '%s' and RowKey lt 'once-open.'", partition, after)
	for at := (place{}); len(digests) < limit; {
		entities, next, err := l.entities(ctx, filter, at, limit-len(digests))
		if err != nil {
			return nil, err
		}
		for _, text := range entities {
			name, err := rowKey(text)
			if err != nil {
				return nil, err
			}
			digests = append(digests, strings.TrimPrefix(name, openPrefix))
		}
		if at = next; at == (place{}) {
			break
		}
	}
	return digests, nil
}

func (l *lister) loadDigest(ctx context.Context, text string) (is cas.Stored, err error) {
	entity, err := l.get(ctx, text[:min(2, len(text))], keyPrefix+text)
	if err != nil || entity == nil {
		return is, err
	}
	return decode(entity)
}

// place is where a query goes on. The zero place is its beginning or end.
type place struct{ partition, row string }

// query returns rows, and where it goes on. If some are damaged, it returns the
// others, and why: each error is once.ErrCorrupt.
func (e *engine) query(ctx context.Context, filter string, from place, limit int) (found []cas.Stored, next place, err error) {
	entities, next, err := e.entities(ctx, filter, from, limit)
	for _, text := range entities {
		is, damage := decode(text)
		if damage != nil {
			err = errors.Join(err, damage)
			continue
		}
		found = append(found, is)
	}
	return found, next, err
}

// entities returns what one request returns.
func (e *engine) entities(ctx context.Context, filter string, from place, limit int) (found [][]byte, next place, err error) {
	top := int32(min(limit, largestPage))
	o := &aztables.ListEntitiesOptions{Filter: &filter, Top: &top}
	if from != (place{}) {
		o.NextPartitionKey = &from.partition
		if from.row != "" {
			o.NextRowKey = &from.row
		}
	}
	err = e.call(ctx, func(ctx context.Context) error {
		resp, err := e.client.NewListEntitiesPager(o).NextPage(ctx)
		found = resp.Entities
		if resp.NextPartitionKey != nil {
			next.partition = *resp.NextPartitionKey
		}
		if resp.NextRowKey != nil {
			next.row = *resp.NextRowKey
		}
		return err
	}).err
	return found, next, err
}

// inParallel calls do for 0 to n-1, a few at once.
func inParallel(n int, do func(int) error) error {
	errs := make([]error, n)
	var calling sync.WaitGroup
	for worker := range min(n, parallel) {
		calling.Go(func() {
			for i := worker; i < n; i += parallel {
				errs[i] = do(i)
			}
		})
	}
	calling.Wait()
	return errors.Join(errs...)
}
