package storetest_test

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/effectively-once/once"
)

// looks is how many rows a page looks at. It is small, so that pages are short.
const looks = 7

func (s *buggyStore) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	if err := s.enter(ctx); err != nil {
		return page, err
	}
	defer s.mu.Unlock()
	most := looks + 1 // one more shows that there is a next page
	if s.has("list unbounded") {
		most = len(s.rows)
	}
	var after []row // the first rows, in order
	for _, r := range s.rows {
		if c := s.order(q.After, r.Key); q.After != (once.Key{}) && (c > 0 || c == 0 && !s.has("pages overlap")) {
			continue
		}
		if i, _ := slices.BinarySearchFunc(after, r, func(a, b row) int { return s.order(a.Key, b.Key) }); i < most {
			after = slices.Insert(after, i, r)[:min(len(after)+1, most)]
		}
	}
	limit := min(cmp.Or(q.Limit, 100), looks)
	if s.has("list unbounded") {
		limit = len(after)
	}
	for i, r := range after {
		if len(page.Records) == limit || i == looks && !s.has("list unbounded") {
			page.Next = after[i-1].Key
			break
		}
		if rec, ok := s.listed(q, r); ok {
			page.Records = append(page.Records, rec)
		}
	}
	switch {
	case s.has("a short page is the last") && len(page.Records) < limit:
		page.Next = once.Key{}
	case s.has("pages have no end") && page.Next == once.Key{}:
		page.Next = q.After
	}
	return page, nil
}

// listed returns a record as List returns it, if the query selects it.
func (s *buggyStore) listed(q once.RecordQuery, r row) (is once.Record, ok bool) {
	is = s.read(r, s.now())
	status := is.Status
	if s.has("list by stored status") {
		status = r.Status
	}
	if !s.has("list with bodies") {
		is.Outcome.Body = nil
	}
	return is, (is.Attempt > 0 || s.has("forgotten keys listed")) &&
		(len(q.Status) == 0 || slices.Contains(q.Status, status)) && s.selectsOperation(q, is) &&
		(len(q.Scopes) == 0 || slices.Contains(q.Scopes, is.Key.Scope) || s.has("list in any scope")) &&
		(q.Cause == [16]byte{} || q.Cause == is.Cause || s.has("list of any cause")) &&
		(q.UUID == [16]byte{} || q.UUID == is.Key.UUID() || s.has("list by UUID is everything")) &&
		(s.now().Sub(is.Updated) >= q.Unchanged || s.has("list what has just changed"))
}

func (s *buggyStore) selectsOperation(q once.RecordQuery, is once.Record) bool {
	if s.has("list by prefix") {
		return strings.HasPrefix(is.Key.Operation, q.Operation)
	}
	return q.Operation == "" || is.Key.Operation == q.Operation
}

func (s *buggyStore) order(a, b once.Key) int {
	if s.has("pages skip what sorts equal") {
		return strings.Compare(a.Scope, b.Scope)
	}
	return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Operation, b.Operation), strings.Compare(a.ID, b.ID))
}

// FindIDs makes the store a store.IDFinder.
func (s *buggyStore) FindIDs(ctx context.Context, part string, limit int) (found []once.Key, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if part == "" && !s.has("an empty part is in all IDs") {
		return nil, nil
	}
	for _, r := range s.rows {
		known := s.read(r, s.now()).Attempt > 0 || s.has("IDs of forgotten keys")
		if known && s.contains(r.Key.ID, part) && (len(found) < cmp.Or(limit, 100) || s.has("IDs without a limit")) {
			found = append(found, r.Key)
		}
	}
	return found, nil
}

func (s *buggyStore) contains(id, part string) bool {
	switch {
	case s.has("IDs by prefix"):
		return strings.HasPrefix(id, part)
	case s.has("IDs in any case"):
		return strings.Contains(strings.ToLower(id), strings.ToLower(part))
	case s.has("IDs by a pattern"):
		return strings.Contains(strings.ReplaceAll(id, "x", "_"), strings.ReplaceAll(part, "x", "_"))
	}
	return strings.Contains(id, part)
}
