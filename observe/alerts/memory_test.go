package alerts_test

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// memory keeps series. The database of Prometheus takes two minutes to compile.
type memory struct {
	series map[string]*series
}

type series struct {
	labels labels.Labels
	points []chunks.Sample
}

func (m *memory) add(l labels.Labels, at int64, v float64) {
	of := m.series[l.String()]
	if of == nil {
		of = &series{labels: l}
		m.series[l.String()] = of
	}
	of.points = append(of.points, point{at, v})
}

// queryable is what the engine asks.
func (m *memory) queryable() storage.Queryable {
	find := func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &found{SeriesSet: storage.EmptySeriesSet()}
		for _, s := range m.series {
			if !slices.ContainsFunc(matchers, func(l *labels.Matcher) bool { return !l.Matches(s.labels.Get(l.Name)) }) {
				set.all = append(set.all, storage.NewListSeries(s.labels, s.points))
			}
		}
		slices.SortFunc(set.all, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
		return set
	}
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: find}}
}

// found is a storage.SeriesSet.
type found struct {
	storage.SeriesSet // an empty one: no errors, no warnings
	all               []storage.Series
	at                int
}

func (f *found) Next() bool         { f.at++; return f.at <= len(f.all) }
func (f *found) At() storage.Series { return f.all[f.at-1] }

// point is a chunks.Sample.
type point struct {
	t int64
	v float64
}

func (p point) T() int64                      { return p.t }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.v }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }
