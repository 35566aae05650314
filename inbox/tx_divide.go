package inbox

import "context"

// divisible handles items in one transaction.
type divisible interface {
	// try handles items together. It returns a handlerError if the handler
	// failed.
	try(ctx context.Context, items []*item) ([]result, error)

	// alone returns the result of an item whose handler failed for it alone.
	alone(ctx context.Context, it *item, failed *handlerError) result
}

// divide handles items together. If that fails, it handles them in parts, until
// the one that fails is alone. Items do not overtake one of their lane that is
// to be tried again.
func (e *env) divide(ctx context.Context, d divisible, items []*item) []result {
	if len(items) == 0 {
		return nil
	}
	results, err := d.try(ctx, items)
	if err == nil {
		return results
	}
	failed := handlerErrorOf(err)
	if failed == nil { // the store failed, and so did all of them
		for _, it := range items {
			r := e.refused(ctx, it, err)
			if r.kind == toPark && len(items) > 1 { // one of them may be the cause
				return e.divideAt(ctx, d, items, len(items)/2, len(items)/2)
			}
			results = append(results, r)
		}
		return results
	}
	if len(items) == 1 {
		return []result{d.alone(ctx, items[0], failed)}
	}
	first, rest := len(items)/2, len(items)/2
	if at := blamed(failed, items); at >= 0 {
		first, rest = at, at+1
	}
	return e.divideAt(ctx, d, items, first, rest)
}

// divideAt handles three parts of items: up to first, up to rest, and the others.
func (e *env) divideAt(ctx context.Context, d divisible, items []*item, first, rest int) []result {
	results := e.divide(ctx, d, items[:first])
	for _, part := range [][]*item{items[first:rest], items[rest:]} {
		results = append(results, e.divideAfter(ctx, d, items[:len(results)], results, part)...)
	}
	return results
}

// divideAfter handles the items of a part that wait for none before it.
func (e *env) divideAfter(ctx context.Context, d divisible, before []*item, of []result, part []*item) []result {
	waiting := make(map[string]bool)
	for i, it := range before {
		if it.lane != "" && (of[i].holdsUp() || of[i].kind == blocked) { // what it waits for may be handled meanwhile
			waiting[it.lane] = true
		}
	}
	var free []*item
	for _, it := range part {
		if !waiting[it.lane] && !e.outages.isDown(it.Message.Topic) {
			free = append(free, it)
		} else if it.lane != "" {
			waiting[it.lane] = true
		}
	}
	results := repeated(result{kind: again}, part)
	merge(results, part, free, e.divide(ctx, d, free))
	return results
}
