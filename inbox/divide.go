package inbox

import (
	"context"
	"errors"
)

// divide handles items in one transaction, and, if that fails, in as few as it takes to find the one that fails. Items
// behind one that is to be tried again do not overtake it, if they are in its lane.
func (s *consumerRun) divide(ctx context.Context, items []*item, try func(context.Context, []*item) ([]result, error),
	alone func(context.Context, *item, error) result) []result {

	if len(items) == 0 {
		return nil
	}
	fates, err := try(ctx, items)
	if err == nil {
		return fates
	}
	var f *failure
	if !errors.As(err, &f) { // the store's, and so everybody's
		for _, it := range items {
			f := s.refused(ctx, it, err)
			if f.kind == hopeless && len(items) > 1 { // whose fault it is shows when each is alone
				return s.divideAt(ctx, items, len(items)/2, len(items)/2, try, alone)
			}
			fates = append(fates, f)
		}
		return fates
	}
	if len(items) == 1 {
		return []result{alone(ctx, items[0], f.err)}
	}
	first, rest := len(items)/2, len(items)/2
	if at := blamed(f, items); at >= 0 {
		first, rest = at, at+1
	}
	return s.divideAt(ctx, items, first, rest, try, alone)
}

// divideAt divides items into those before first, those from there to rest, and those behind.
func (s *consumerRun) divideAt(ctx context.Context, items []*item, first, rest int, try func(context.Context, []*item) ([]result, error),
	alone func(context.Context, *item, error) result) []result {

	fates := s.divide(ctx, items[:first], try, alone)
	for _, part := range [][]*item{items[first:rest], items[rest:]} {
		fates = append(fates, s.behind(ctx, items[:len(fates)], fates, part, try, alone)...)
	}
	return fates
}

// behind handles the items of a part that have nothing to wait for in what is before it.
func (s *consumerRun) behind(ctx context.Context, before []*item, fates []result, part []*item,
	try func(context.Context, []*item) ([]result, error), alone func(context.Context, *item, error) result) []result {

	waiting := make(map[string]bool)
	for i, it := range before {
		if it.lane != "" && unsettled(fates[i]) {
			waiting[it.lane] = true
		}
	}
	var free []*item
	for _, it := range part {
		if !waiting[it.lane] {
			free = append(free, it)
		}
	}
	done := s.divide(ctx, free, try, alone)
	var all []result
	for _, it := range part {
		if waiting[it.lane] {
			all = append(all, result{kind: again})
			continue
		}
		all, done = append(all, done[0]), done[1:]
	}
	return all
}

// unsettled reports whether those behind an item have to wait for another try of it, here or on the shelf.
func unsettled(f result) bool {
	return f.kind == again || f.kind == failing || f.kind == hopeless
}
