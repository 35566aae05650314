package doctor

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/internal/abandon"
	"github.com/effectively-once/once/store"
)

// hubsView is the examined part of a namespace of Azure Event Hubs. The service does
// not list its hubs to those who read and write.
type hubsView struct {
	connection string // or
	namespace  string
	credential azcore.TokenCredential

	named []string // hubs in the URL
	hubs  map[string]*hub
}

// hub is what the service tells about a hub.
type hub struct {
	azeventhubs.EventHubProperties
	partitions map[string]azeventhubs.PartitionProperties // by ID
}

// hubsOf returns a view of a namespace. It does not connect.
func hubsOf(ctx context.Context, a address) (*hubsView, error) {
	emulator := a.take("emulator")
	if err := a.rest(); err != nil {
		return nil, err
	}
	connection, credential, err := azureNamespace(a)
	if err != nil {
		return nil, err
	}
	v := &hubsView{connection: connection, namespace: a.hosts[0], credential: credential, hubs: make(map[string]*hub)}
	for name := range strings.FieldsFuncSeq(a.path, func(r rune) bool { return r == '/' || r == ',' }) {
		v.named = append(v.named, name)
	}
	switch {
	case strings.Count(a.path, "/") > 1:
		return nil, refuse("it is not of the form eventhubs://name:key@namespace/hub,hub")
	case emulator == "true" && connection != "":
		v.connection += ";UseDevelopmentEmulator=true"
	case emulator != "" && emulator != "false":
		return nil, refuse("emulator is true or false, and an emulator needs a name and a key")
	}
	if client, err := v.client("none"); err != nil {
		return nil, refuse("it is not of the form eventhubs://name:key@namespace/hub,hub") // the text of err may contain the key
	} else {
		_ = client.Close(ctx) // it has no connection
	}
	return v, nil
}

func dialEventHubs(ctx context.Context, a address) (*Broker, error) {
	v, err := hubsOf(ctx, a)
	if err != nil {
		return nil, err
	}
	// A namespace cannot be asked for anything before a hub is known.
	host := v.namespace
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, "5671")
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	_ = c.Close()
	return &Broker{name: a.String(), kind: "eventhubs", close: func() {}, checks: []brokerCheck{
		{"eventhubs-hubs", v.look}, {"eventhubs-positions", v.positions},
	}}, nil
}

// client returns a client for a hub. It does not connect.
func (v *hubsView) client(name string) (*azeventhubs.ConsumerClient, error) {
	o := &azeventhubs.ConsumerClientOptions{RetryOptions: azeventhubs.RetryOptions{MaxRetries: -1}}
	if v.connection != "" {
		return azeventhubs.NewConsumerClientFromConnectionString(v.connection, name, azeventhubs.DefaultConsumerGroup, o)
	}
	return azeventhubs.NewConsumerClient(v.namespace, name, azeventhubs.DefaultConsumerGroup, v.credential, o)
}

// look examines the hubs in the URL and those that registered consumers read.
func (v *hubsView) look(ctx context.Context, s *survey) error {
	names := slices.Clone(v.named)
	for _, r := range s.readers {
		names = append(names, r.of...)
	}
	if len(names) == 0 {
		s.found("eventhubs-not-listed", Note, "The service does not list its hubs, and no registered consumer reads one.", "No hub was examined.",
			"Name hubs in the URL: eventhubs://namespace/orders,returns.")
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if ok, _ := path.Match(s.only, name); !ok && s.only != "" {
			continue
		}
		h, err := v.read(ctx, name)
		if err != nil {
			return fmt.Errorf("hub %s: %w", show.Line(name), err)
		}
		v.hubs[name] = h
		if h != nil {
			hubTells(s, h)
		} else if slices.Contains(v.named, name) {
			s.found("eventhubs-hub-missing", Warning, "There is no hub "+show.Line(name)+".", "Relays that publish to it hold their messages.",
				"Create it, or check that this is the right namespace.")
		}
	}
	return nil
}

// read returns what the service tells about a hub, or nil if it does not exist.
func (v *hubsView) read(ctx context.Context, name string) (*hub, error) {
	client, err := v.client(name)
	if err != nil {
		return nil, err
	}
	defer client.Close(context.WithoutCancel(ctx))
	h := &hub{partitions: make(map[string]azeventhubs.PartitionProperties)}
	h.EventHubProperties, err = abandon.Ask(ctx, func() (azeventhubs.EventHubProperties, error) { return client.GetEventHubProperties(ctx, nil) })
	if err != nil && isNoHub(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, id := range h.PartitionIDs {
		h.partitions[id], err = abandon.Ask(ctx, func() (azeventhubs.PartitionProperties, error) { return client.GetPartitionProperties(ctx, id, nil) })
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

// isNoHub reports whether a hub does not exist, which the client tells in words
// alone.
func isNoHub(err error) bool {
	text := err.Error()
	return strings.Contains(text, "amqp:not-found") || strings.Contains(text, "could not be found")
}

func hubTells(s *survey, h *hub) {
	name := "Hub " + show.Line(h.Name)
	s.found("eventhubs-retention-not-seen", Note, "The service does not tell how long hub "+show.Line(h.Name)+" keeps messages, nor whether it is compacted.",
		"When that time is over, messages are deleted, handled or not, and a consumer cannot compare it with its keys.",
		"See in the portal that the retention is longer than any downtime of a consumer and shorter than Policy.KeepKey, and that compaction is off.")
	if len(h.PartitionIDs) == 1 {
		s.found("eventhubs-one-partition", Note, name+" has one partition.", "One process of a consumer works at a time.",
			"Nothing, if that is enough. Partitions that are added later break the order of ordering keys.")
	}
	if h.GeoReplicationEnabled {
		s.found("eventhubs-geo-replication", Note, name+" is replicated to another region.",
			"If the replication is asynchronous, a forced failover loses the newest messages. A consumer that has handled some of them stops, because new ones have their numbers.",
			"Choose synchronous replication, if that must not happen.")
	}
}

// positions compares the positions of registered consumers with the hubs.
func (v *hubsView) positions(_ context.Context, s *survey) error {
	for _, r := range s.readers {
		name := r.of[0]
		switch h, read := v.hubs[name]; {
		case !read: // it is not wanted, or could not be read
		case h == nil:
			s.missing(r, "such hub")
		default:
			hubPositions(s, r, h)
		}
	}
	return nil
}

func hubPositions(s *survey, r reader, h *hub) {
	log := r.of[0] + "#" + h.CreatedOn.UTC().Format(time.RFC3339Nano) // as eventhubsbroker writes it
	places := slices.DeleteFunc(slices.Clone(r.places), func(p store.Position) bool { return !strings.HasPrefix(p.Partition, r.of[0]+"/") })
	if slices.ContainsFunc(places, func(p store.Position) bool { return p.Log != "" && p.Log != log }) {
		s.found("eventhubs-hub-anew", Warning, fmt.Sprintf("%s: the hub was deleted and created again.", r.printed),
			"The stored positions belong to the deleted hub. The consumer stops with inbox.ErrLogChanged.",
			"Find out which messages of the deleted hub were not handled. Then start with another consumer name.")
		return
	}
	for _, p := range places {
		id := path.Base(p.Partition)
		of, there := h.partitions[id]
		if !there || p.Log == "" { // nothing of it was handled
			continue
		}
		first := of.BeginningSequenceNumber
		if of.IsEmpty {
			first = of.LastEnqueuedSequenceNumber + 1
		}
		name := fmt.Sprintf("%s is at %d in partition %s", r.printed, p.Offset, show.Line(id))
		switch {
		case p.Offset+1 < first:
			s.found("eventhubs-unread-dropped", Unsafe, fmt.Sprintf("%s, which begins at %d.", name, first),
				"The messages in between were deleted before they were handled. Their effects never happen. The consumer stops there and does not skip them.",
				"Have the producers send them again, then move the position of the consumer. Keep messages for longer than an outage lasts.")
		case p.Offset > of.LastEnqueuedSequenceNumber:
			s.found("eventhubs-end-lost", Unsafe, fmt.Sprintf("%s, which ends at %d.", name, of.LastEnqueuedSequenceNumber),
				"The hub has lost messages that were handled, for example in a forced failover, and perhaps others. The consumer stops, because new messages have their numbers.",
				"Have the producers send again what was lost. Then start with another consumer name.")
		}
	}
	if len(places) > 0 && len(places) < len(h.PartitionIDs) {
		s.found("eventhubs-partitions-added", Warning, fmt.Sprintf("%s has positions in %d of %d partitions.", r.printed, len(places), len(h.PartitionIDs)),
			"Partitions were added, or the consumer has not read all of them yet. Messages of a key that moved to another partition can overtake older ones.",
			"Check that the consumer runs and had read all messages before partitions were added, or detect older messages by a version.")
	}
}
