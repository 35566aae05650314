package storetest_test

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/effectively-once/once"
)

// looks is how many rows a page looks at: few, so that pages are short.
const looks = 7

func (s *buggyStore) List(ctx context.Context, q once.Query) (page once.Page, err error) {
	if err := s.enter(ctx); err != nil {
		return page, err
	}
	defer s.mu.Unlock()
	var behind []row
	for _, r := range s.rows {
		if c := s.order(q.After, r.Key); q.After == (once.Key{}) || c < 0 || c == 0 && s.has("pages overlap") {
			behind = append(behind, r)
		}
	}
	slices.SortFunc(behind, func(a, b row) int { return s.order(a.Key, b.Key) })
	limit := min(cmp.Or(q.Limit, 100), looks)
	if s.has("list unbounded") {
		limit = len(behind)
	}
	for i, r := range behind {
		if len(page.Records) == limit || i == looks && !s.has("list unbounded") {
			page.Next = behind[i-1].Key
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

// listed is a record as it is listed, if the query selects it.
func (s *buggyStore) listed(q once.Query, r row) (is once.Record, ok bool) {
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
		(s.now().Sub(is.Updated) >= q.Unchanged || s.has("list what has just changed"))
}

func (s *buggyStore) selectsOperation(q once.Query, is once.Record) bool {
	if s.has("list by prefix") {
		return strings.HasPrefix(is.Key.Operation, q.Operation)
	}
	return q.Operation == "" || is.Key.Operation == q.Operation
}

func (s *buggyStore) order(a, b once.Key) int {
	if s.has("pages skip what sorts equal") {
		return strings.Compare(a.Scope, b.Scope)
	}
	return strings.Compare(a.String(), b.String())
}
