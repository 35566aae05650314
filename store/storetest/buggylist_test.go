package storetest_test

import (
	"context"
	"slices"
	"strings"

	"github.com/effectively-once/once"
)

func (s *buggyStore) List(ctx context.Context, q once.Query) (page []once.Record, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for _, r := range s.rows {
		is := s.read(r, s.now())
		status := is.Status
		if s.has("list by stored status") {
			status = r.Status
		}
		if is.Attempt == 0 && !s.has("forgotten keys listed") || len(q.Status) > 0 && !slices.Contains(q.Status, status) || !s.selectsOperation(q, is) {
			continue
		}
		if !s.has("list with bodies") {
			is.Outcome.Body = nil
		}
		if c := s.order(q.After, is.Key); q.After == (once.Key{}) || c < 0 || c == 0 && s.has("pages overlap") {
			page = append(page, is)
		}
	}
	slices.SortFunc(page, func(a, b once.Record) int { return s.order(a.Key, b.Key) })
	limit := q.Limit
	if limit == 0 {
		limit = 100
	}
	if s.has("list unbounded") {
		limit = len(page)
	}
	return page[:min(limit, len(page))], nil
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
