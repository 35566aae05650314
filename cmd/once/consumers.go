package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
)

type consumersCommand struct {
	List      consumersList      `cmd:"" help:"List all registered consumers."`
	Positions consumersPositions `cmd:"" help:"List the positions of a consumer, one per partition of its log."`
	Rename    consumersRename    `cmd:"" help:"Give a consumer another name."`
	Retire    consumersRetire    `cmd:"" help:"Take a consumer out of use that is gone for good."`
}

// Help is the long text of once consumers --help.
func (consumersCommand) Help() string {
	return `
Examples:
  once consumers list
  once consumers positions billing
  once consumers rename billing invoicing --reason "ticket 88"
  once consumers retire mailing --reason "replaced by notifying"

` + exitHelp
}

type consumersList struct {
	storeFlags
	outputFlags
}

// Help is the long text of once consumers list --help.
func (consumersList) Help() string { return "\nExample:\n  once consumers list -o json" }

type consumerJSON struct {
	Name    string       `json:"name"`
	Source  string       `json:"source"`
	Keys    string       `json:"keys"`
	Seen    float64      `json:"seen_seconds"`
	Retired *retiredJSON `json:"retired,omitempty"`
	Queued  *int64       `json:"queued,omitempty"` // messages that wait for it in the store, up to 10,000
	Down    []downJSON   `json:"down,omitempty"`
	Damaged string       `json:"damaged,omitempty"` // why its row cannot be read; what could not be read is empty
}

// downJSON is a topic of which nothing gets through at a consumer.
type downJSON struct {
	Topic  string `json:"topic"`
	Since  string `json:"since"`
	Reason string `json:"reason"`
}

type retiredJSON struct {
	At     string `json:"at"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

func consumersAsJSON(all []store.Consumer) []consumerJSON {
	j := []consumerJSON{}
	for _, one := range all {
		c := consumerJSON{Name: one.Name, Source: one.Source, Keys: one.Keys, Seen: seconds(one.Seen)}
		if at, by, why, ok := store.RetiredAt(one.Source); ok {
			c.Retired = &retiredJSON{stamp(at), by, why}
		}
		if one.Damaged != nil {
			c.Damaged = one.Damaged.Error()
		}
		j = append(j, c)
	}
	return j
}

// sourceText is the source of a consumer, or that it is retired.
func sourceText(c store.Consumer) string {
	at, by, why, ok := store.RetiredAt(c.Source)
	if !ok {
		return c.Source
	}
	return fmt.Sprintf("retired %s by %s: %s", at.Format(time.RFC3339), by, why)
}

// Run prints the consumers.
func (c *consumersList) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	registry, err := target.Need[store.Registry](s.Target, target.ARegistry)
	if err != nil {
		return err
	}
	all, err := registry.Consumers(ctx)
	if err != nil {
		return err
	}
	down, err := outagesOf(ctx, s, all)
	if err != nil {
		return err
	}
	sources, as := make([]string, len(all)), consumersAsJSON(all)
	shelf, carries := once.As[store.Shelf](s.Target.Store)
	for i, one := range all {
		sources[i] = sourceText(one)
		if _, ok := store.TopicOf(one.Source); !ok || !carries || !one.IsLegible() {
			continue
		}
		lag, err := store.QueueLag(ctx, shelf, one.Keys)
		if err != nil {
			return err
		}
		as[i].Queued = &lag.Messages
		if lag.Messages > 0 {
			sources[i] += fmt.Sprintf(": %d queued, the oldest %s", lag.Messages, show.Ago(lag.Oldest))
		}
	}
	if c.json() {
		for i := range as {
			for _, o := range down[as[i].Keys] {
				as[i].Down = append(as[i].Down, downJSON{o.Topic, stamp(o.Since), o.Reason})
			}
		}
		return printJSON(map[string]any{"consumers": as})
	}
	if len(all) == 0 {
		empty(c.outputFlags, "consumer", false)
	}
	table := newTable("NAME", "SEEN", "SOURCE", "KEYS")
	for i, one := range all {
		seen := show.Ago(one.Seen)
		if one.Damaged != nil {
			seen = "damaged"
		}
		table.Row(one.Name, seen, sources[i], one.Keys)
	}
	if err := table.Print(os.Stdout); err != nil {
		return err
	}
	for _, one := range all {
		if one.Damaged != nil {
			fmt.Fprintln(os.Stdout, show.Line(one.Damaged.Error()))
		}
	}
	told := make(map[string]bool)
	for _, one := range all {
		for _, o := range down[one.Keys] {
			if !told[one.Keys+"\x00"+o.Topic] {
				topic := "the topic " + show.Line(o.Topic)
				if o.Topic == inbox.AllTopics {
					topic = "any topic"
				}
				fmt.Fprintf(os.Stdout, "%s: nothing of %s gets through, since %s: %s\n", show.Line(one.Name), topic, stamp(o.Since), show.Line(o.Reason))
			}
			told[one.Keys+"\x00"+o.Topic] = true
		}
	}
	return nil
}

// outagesOf returns what is down at consumers, by their keys.
func outagesOf(ctx context.Context, s *session, all []store.Consumer) (map[string][]inbox.Outage, error) {
	down := make(map[string][]inbox.Outage)
	for _, one := range all {
		if _, read := down[one.Keys]; read || one.Seen > inbox.OutageShown || !one.IsLegible() {
			continue
		}
		found, err := inbox.Outages(ctx, s.Store, one.Keys)
		if err != nil {
			return nil, err
		}
		down[one.Keys] = found
	}
	return down, nil
}

type consumersPositions struct {
	storeFlags
	outputFlags
	Name string `arg:"" complete:"consumer" help:"Name of the consumer."`
}

// Help is the long text of once consumers positions --help.
func (consumersPositions) Help() string {
	return "\nOnly consumers with a Checkpoint have positions.\n\nExample:\n  once consumers positions billing"
}

type positionJSON struct {
	Partition string `json:"partition"`
	Log       string `json:"log"`
	Offset    int64  `json:"offset"`
	Epoch     int64  `json:"epoch"`
	Shelved   bool   `json:"shelved"`
	Damaged   string `json:"damaged,omitempty"` // why it cannot be read; log, offset and epoch mean nothing then
}

// keysOf returns the name under which a consumer keeps its positions and its
// messages: its first one, if it was renamed.
func keysOf(ctx context.Context, s *session, name string) (string, error) {
	registry, err := target.Need[store.Registry](s.Target, target.ARegistry)
	if err != nil {
		return name, err
	}
	all, err := registry.Consumers(ctx)
	for _, one := range all {
		if one.Name == name && one.IsLegible() {
			return one.Keys, err
		}
	}
	for _, one := range all { // which may be it
		if !one.IsLegible() {
			return name, one.Damaged
		}
	}
	return name, err
}

// Run prints the positions.
func (c *consumersPositions) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	shelf, err := target.Need[inbox.AdminStore](s.Target, target.ARegistry)
	if err != nil {
		return err
	}
	keys, err := keysOf(ctx, s, c.Name)
	if err != nil {
		return err
	}
	all, err := shelf.Positions(ctx, keys)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return moved("the consumer %q has no positions", c.Name)
	}
	if c.json() {
		j := []positionJSON{}
		for _, p := range all {
			is := positionJSON{Partition: p.Partition, Log: p.Log, Offset: p.Offset, Epoch: p.Epoch, Shelved: p.Shelved}
			if p.Damaged != nil {
				is.Damaged = p.Damaged.Error()
			}
			j = append(j, is)
		}
		return printJSON(map[string]any{"positions": j})
	}
	table := newTable("PARTITION", "OFFSET", "LOG", "EPOCH", "ON THE SHELF")
	for _, p := range all {
		shelf := "nothing"
		if p.Shelved {
			shelf = "messages"
		}
		if p.Damaged != nil {
			table.Row(p.Partition, "damaged", "", "", shelf)
			continue
		}
		table.Row(p.Partition, fmt.Sprint(p.Offset), p.Log, fmt.Sprint(p.Epoch), shelf)
	}
	if err := table.Print(os.Stdout); err != nil {
		return err
	}
	for _, p := range all {
		if p.Damaged != nil {
			fmt.Fprintln(os.Stdout, show.Line(p.Damaged.Error()))
		}
	}
	return nil
}
