package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// groupID is the ID of a group of failures.
type groupID string

// UnmarshalText is called by kong.
func (g *groupID) UnmarshalText(text []byte) error {
	if !alike.IsID(string(text)) {
		return fmt.Errorf("it is %q: use an ID that groups printed, 16 hexadecimal digits", text)
	}
	*g = groupID(text)
	return nil
}

// has reports whether a reason is of the group. Without an ID, each one is.
func (g groupID) has(reason string) bool { return g == "" || alike.ID(alike.Text(reason)) == string(g) }

// largestRead is what each store returns at once.
const largestRead = 1000

// listed returns up to limit messages of a group after a place in a list, and the place
// after which there may be more, or 0. It reads that many at once if there is a group,
// and ends early if its messages are rare.
func listed[M any](group groupID, limit, atOnce int, after int64, next func(limit int, after int64) ([]M, error), at func(M) (reason string, seq int64)) (found []M, more int64, err error) {
	size := limit
	if group != "" {
		size = atOnce
	}
	for begun := time.Now(); ; {
		page, err := next(size, after)
		if err != nil {
			return nil, 0, err
		}
		for _, m := range page {
			reason, seq := at(m)
			after = seq
			if !group.has(reason) {
				continue
			}
			if found = append(found, m); len(found) == limit {
				return found, after, nil
			}
		}
		if len(page) < size {
			return found, 0, nil
		}
		if time.Since(begun) > pageTime {
			return found, after, nil
		}
	}
}

// groupFlags bound what is read for a list of groups.
type groupFlags struct {
	Limit int `default:"100000" placeholder:"N" help:"Count at most this many messages (default 100000)."`
}

// Validate is called by kong.
func (f *groupFlags) Validate() error {
	if f.Limit < 1 {
		return fmt.Errorf("--limit is %d: use 1 or more", f.Limit)
	}
	return nil
}

// countGroups counts the messages of a list by why they failed.
func countGroups[M any](limit int, line *progress, next func(limit int, after int64) ([]M, error), add func(*alike.Groups, M) (seq int64)) (g alike.Groups, more bool, err error) {
	defer line.end()
	for after := int64(0); g.Count < limit; {
		size := min(limit-g.Count, largestRead)
		page, err := next(size, after)
		if err != nil {
			return g, false, err
		}
		for _, m := range page {
			after = add(&g, m)
		}
		line.say("%s counted", show.Count(g.Count, "message", "messages"))
		if len(page) < size {
			return g, false, nil
		}
	}
	return g, true, nil
}

// groupJSON is the JSON form of a group of failures.
type groupJSON struct {
	ID        string   `json:"id"`
	Messages  int      `json:"messages"`
	Oldest    string   `json:"oldest"`
	Newest    string   `json:"newest"`
	Consumers []string `json:"consumers,omitempty"`
	Unknown   bool     `json:"unknown"`
	Reason    string   `json:"reason"`
}

func printGroups(o outputFlags, g alike.Groups, more, consumers bool, none, verb string) error {
	groups := g.Largest()
	if o.json() {
		all := []groupJSON{}
		for _, of := range groups {
			all = append(all, groupJSON{of.ID, of.Count, stamp(of.Oldest), stamp(of.Newest), of.Consumers, strings.HasPrefix(of.Text, store.UnknownOutcome), of.Text})
		}
		return printJSON(struct {
			Groups   []groupJSON `json:"groups"`
			Messages int         `json:"messages"`
			More     bool        `json:"more"`
		}{all, g.Count, more})
	}
	if len(groups) == 0 {
		note("%s", none)
	}
	heading := []string{"ID", "MESSAGES", "NEWEST", "OLDEST", "CONSUMERS", "REASON"}
	if !consumers {
		heading = []string{"ID", "MESSAGES", "NEWEST", "OLDEST", "REASON"}
	}
	table := newTable(heading...)
	for _, of := range groups {
		row := []any{of.ID, fmt.Sprint(of.Count), show.Ago(time.Since(of.Newest)), show.Ago(time.Since(of.Oldest))}
		if consumers {
			names := "many"
			if len(of.Consumers) > 0 {
				names = strings.Join(of.Consumers, ", ")
			}
			row = append(row, names)
		}
		table.Row(append(row, show.Short(of.Text))...)
	}
	if more {
		defer note("There may be more: only the first %d messages were counted.", g.Count)
	}
	if len(groups) > 0 {
		defer note("To see the messages of one: %s --alike ID", verb)
	}
	return table.Print(os.Stdout)
}

type parkedGroups struct {
	storeFlags
	outputFlags
	shelfFilter
	groupFlags
	State string `enum:"parked,waiting" default:"parked" help:"parked or waiting."`
}

const groupHelp = `
Messages fail alike if the first lines of their reasons are equal but for words with digits, such as IDs, numbers and
times, and mail addresses. Codes after words such as status and SQLSTATE tell groups apart, and so does an unknown
outcome. The console has the same groups.
`

// Help is the long text of once parked groups --help.
func (parkedGroups) Help() string {
	return groupHelp + `
Examples:
  once parked groups
  once parked list --alike 9f86d081884c7d65
  once parked replay --alike 9f86d081884c7d65 --reason "fixed in release 1.42" --dry-run

` + exitHelp
}

// Run prints groups.
func (c *parkedGroups) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	shelf, err := target.Need[inbox.AdminStore](s.Target, target.AShelf)
	if err != nil {
		return err
	}
	q := c.query()
	q.States, q.Bodiless = []store.ShelfState{shelfStates[c.State]}, true
	g, more, err := countGroups(c.Limit, newProgress(c.outputFlags), func(limit int, after int64) ([]store.Shelved, error) {
		q.Limit, q.After = limit, after
		return shelf.Shelved(ctx, q) // List opens histories as well, which takes long
	}, func(g *alike.Groups, m store.Shelved) int64 {
		g.Add(store.OpenShelved(&shelf.Options().Sealing, m, true).Reason, m.Consumer, m.Updated)
		return m.Seq
	})
	if err != nil {
		return err
	}
	none := fmt.Sprintf("No message is %s%s.", c.State, map[bool]string{false: " among those selected"}[c.none()])
	return printGroups(c.outputFlags, g, more, true, none, "once parked list")
}

type outboxGroups struct {
	storeFlags
	outputFlags
	messageFilter
	groupFlags
	State string `enum:"stuck,held" default:"stuck" help:"stuck or held."`
}

// Help is the long text of once outbox groups --help.
func (outboxGroups) Help() string {
	return groupHelp + `
Examples:
  once outbox groups
  once outbox peek --alike 9f86d081884c7d65
  once outbox retry --alike 9f86d081884c7d65 --reason "the topic exists now" --dry-run

` + exitHelp
}

// Run prints groups.
func (c *outboxGroups) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	messages, err := target.Need[store.Relayable](s.Target, target.AnOutbox)
	if err != nil {
		return err
	}
	q := c.query()
	q.State, q.Bodiless = outgoingStates[c.State], true
	g, more, err := countGroups(c.Limit, newProgress(c.outputFlags), func(limit int, after int64) ([]store.Outgoing, error) {
		q.Limit, q.After = limit, after
		return outbox.Admin{Store: messages}.List(ctx, q)
	}, func(g *alike.Groups, m store.Outgoing) int64 {
		changed := m.Changed
		if changed.IsZero() {
			changed = m.Created
		}
		g.Add(m.Reason, "", changed)
		return m.Seq
	})
	if err != nil {
		return err
	}
	none := fmt.Sprintf("No message is %s%s.", c.State, map[bool]string{false: " among those selected"}[c.none()])
	return printGroups(c.outputFlags, g, more, false, none, "once outbox peek")
}
