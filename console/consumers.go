package console

import (
	"context"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/store"
)

var noRegistry = absence{Heading: "Consumers", What: "list of consumers",
	Who: "Stores on PostgreSQL, MySQL, MariaDB, SQLite, Redis, DynamoDB, Cosmos DB and Azure Tables have one."}

// silentAfter is when a consumer, which registers every minute, is likely not
// running.
const silentAfter = 5 * time.Minute

// consumerRow is a consumer at one source.
type consumerRow struct {
	Name, Source, Seen, Keys string
	Facts                    []part
	Silent                   bool
	Retired                  string // when, by whom and why
	Damaged                  string // why the row cannot be read
	Down                     []downRow
	Lag                      lagText
	URL                      string
}

// downRow is a topic of which nothing gets through.
type downRow struct{ Topic, Since, Reason string } // without a Topic: of any

// markDown adds to rows what their consumers have reported. all has the consumers
// of the rows.
func (v *view) markDown(ctx context.Context, s Store, all []store.Consumer, rows []consumerRow) error {
	asked := make(map[string][]downRow)
	for i, c := range all {
		if c.Seen > inbox.OutageShown || !c.IsLegible() {
			continue
		}
		if _, known := asked[c.Keys]; !known {
			found, err := guarded(ctx, v.Console, s.Name, func() ([]inbox.Outage, error) { return inbox.Outages(ctx, s.Store, c.Keys) })
			if err != nil {
				return err
			}
			asked[c.Keys] = nil
			for _, o := range found {
				row := downRow{legible.Line(o.Topic), exactTime(o.Since), legible.Text(o.Reason)}
				if o.Topic == inbox.AllTopics {
					row.Topic = ""
				}
				asked[c.Keys] = append(asked[c.Keys], row)
			}
		}
		rows[i].Down = asked[c.Keys]
	}
	return nil
}

type consumersPage struct {
	Stores []anchor
	Rows   []consumerRow
	Store  string
	lagNews
}

func (v *view) consumerRows(s Store, all []store.Consumer) (rows []consumerRow) {
	for _, c := range all {
		source, facts := store.SplitSource(c.Source)
		row := consumerRow{Name: c.Name, Source: source, Seen: legible.Ago(c.Seen), Keys: c.Keys, Silent: c.Seen > silentAfter,
			URL: v.consumerLink(s.Name, c.Name), Lag: v.lagTextOf(laggedAt{s.Name, c.Source, c.Keys})}
		if at, by, why, ok := store.RetiredAt(c.Source); ok {
			row.Retired, row.Silent, facts = exactTime(at)+" by "+legible.Line(by)+": "+legible.Text(why), false, nil
		}
		if c.Damaged != nil {
			row.Damaged, row.Seen, row.Silent = legible.Text(c.Damaged.Error()), "", false
		}
		for fact, value := range facts {
			row.Facts = append(row.Facts, part{legible.Line(fact), legible.Line(value)})
		}
		sort.Slice(row.Facts, func(i, j int) bool { return row.Facts[i].Name < row.Facts[j].Name })
		rows = append(rows, row)
	}
	return rows
}

func (v *view) consumers() {
	called := v.r.URL.Query().Get("store")
	s, registry, ok := capable[store.Registry](v, called)
	if !ok {
		a := noRegistry
		a.Store = called
		v.lacks("consumers", "/consumers", a)
		return
	}
	ctx, cancel := v.within()
	defer cancel()
	all, err := guarded(ctx, v.Console, s.Name, func() ([]store.Consumer, error) { return registry.Consumers(ctx) })
	if err != nil {
		v.silent(s, err)
		return
	}
	rows := v.consumerRows(s, all)
	if err := v.markDown(ctx, s, all, rows); err != nil {
		v.silent(s, err)
		return
	}
	v.render(http.StatusOK, "consumers", page{Title: "Consumers", Nav: "consumers", Body: consumersPage{
		Stores: tabs[store.Registry](v, s.Name, "/consumers"), Rows: rows, Store: s.Name, lagNews: v.lagNews()}})
}

// consumerPage is one consumer with its sources, positions and messages.
type consumerPage struct {
	Name      string
	Rows      []consumerRow
	Positions []store.Position
	Located   bool // the store keeps positions
	Unread    bool // what it has is not known, because its row is damaged
	Shelf     []depthRow
	Rebuilds  []rebuildRow
	List      string
	Store     string
	consumerEdits
	lagNews
}

// rebuildRow is a rebuild of a consumer.
type rebuildRow struct {
	Name, URL, Seen string
	Silent, Retired bool
	Reached, Of     int // partitions in which it has come as far as its consumer is now
}

// maxRebuilds is how many rebuilds of a consumer are compared with it.
const maxRebuilds = 20

func (v *view) consumer() {
	q := v.r.URL.Query()
	v.showConsumer(http.StatusOK, consumerEdit{Store: q.Get("store"), Name: q.Get("name")})
}

// showConsumer shows a consumer, with what somebody wants to change about it.
func (v *view) showConsumer(status int, e consumerEdit) {
	called := e.Name
	s, registry, ok := capable[store.Registry](v, e.Store)
	if !ok || called == "" {
		v.damaged()
		return
	}
	ctx, cancel := v.within()
	defer cancel()
	all, err := guarded(ctx, v.Console, s.Name, func() ([]store.Consumer, error) { return registry.Consumers(ctx) })
	if err != nil {
		v.silent(s, err)
		return
	}
	var own []store.Consumer
	for _, c := range all {
		if c.Name == called {
			own = append(own, c)
		}
	}
	if len(own) == 0 {
		v.fail(http.StatusNotFound, "There is no consumer "+legible.Line(called), "It never ran on this store, or it was renamed. The list of consumers has those that did.")
		return
	}
	p := consumerPage{Name: called, Rows: v.consumerRows(s, own), List: v.link("/consumers", "store", s.Name), Store: s.Name,
		consumerEdits: v.editsOf(s, called, own, e), lagNews: v.lagNews()}
	if err := v.markDown(ctx, s, own, p.Rows); err != nil {
		v.silent(s, err)
		return
	}
	own = slices.DeleteFunc(own, func(c store.Consumer) bool { return !c.IsLegible() })
	if p.Unread = len(own) == 0; p.Unread {
		v.render(status, "consumer", page{Title: "Consumer " + legible.Line(called), Nav: "consumers", Body: p})
		return
	}
	keys := own[0].Keys // under which it keeps what it has, whatever its name is now
	if e.Problem == "" {
		v.consumerNews(s.Name, called)
	}
	if shelf, ok := once.As[inbox.AdminStore](s.Store); ok {
		p.Located = true
		p.Positions, err = guarded(ctx, v.Console, s.Name, func() ([]store.Position, error) { return shelf.Positions(ctx, keys) })
		if err == nil {
			p.Shelf, err = v.onShelfOf(ctx, s, shelf, keys)
		}
		if err == nil {
			p.Rebuilds, err = v.rebuildsOf(ctx, s, shelf, called, all, p.Positions)
		}
		if err != nil {
			v.silent(s, err)
			return
		}
	}
	v.render(status, "consumer", page{Title: "Consumer " + legible.Line(called), Nav: "consumers", Body: p})
}

// rebuildsOf compares the positions of rebuilds with those of their consumer.
func (v *view) rebuildsOf(ctx context.Context, s Store, shelf inbox.AdminStore, consumer string, all []store.Consumer, reach []store.Position) (rows []rebuildRow, err error) {
	known := make(map[string]bool)
	for _, c := range all {
		if !strings.HasPrefix(c.Name, consumer+"@") || known[c.Name] || !c.IsLegible() {
			continue
		}
		if len(rows) == maxRebuilds {
			break
		}
		known[c.Name] = true
		ps, err := guarded(ctx, v.Console, s.Name, func() ([]store.Position, error) { return shelf.Positions(ctx, c.Keys) })
		if err != nil {
			return nil, err
		}
		row := rebuildRow{Name: c.Name, URL: v.consumerLink(s.Name, c.Name), Seen: legible.Ago(c.Seen), Of: len(reach)}
		_, _, _, row.Retired = store.RetiredAt(c.Source)
		row.Silent = c.Seen > silentAfter && !row.Retired
		for _, to := range reach {
			if slices.ContainsFunc(ps, func(p store.Position) bool {
				return p.Damaged == nil && to.Damaged == nil && p.Partition == to.Partition && p.Log == to.Log && p.Offset >= to.Offset
			}) {
				row.Reached++
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// onShelfOf counts the messages of a consumer that are parked or wait, up to a page
// of the store.
func (v *view) onShelfOf(ctx context.Context, s Store, shelf store.Shelf, consumer string) (rows []depthRow, err error) {
	for _, state := range []store.ShelfState{store.Parked, store.Waiting} {
		ms, err := guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) {
			return shelf.Shelved(ctx, store.ShelfQuery{Consumer: consumer, States: []store.ShelfState{state}, Limit: maxGlance, Bodiless: true})
		})
		if err != nil {
			return nil, err
		}
		if len(ms) == 0 {
			continue
		}
		rows = append(rows, depthRow{State: state.String(), Count: plus(len(ms), len(ms) == maxGlance), Oldest: v.ago(ms[0].Created),
			URL: v.link("/messages", "store", s.Name, "consumer", consumer, "state", state.String())})
	}
	return rows, nil
}
