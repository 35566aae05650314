package fakeamqp

import (
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hub is an event hub.
type hub struct {
	name   string
	groups []string
	parts  []*partition
	rr     int
	born   time.Time
}

// partition keeps the events from first on. Their sequence numbers are
// contiguous.
type partition struct {
	id      string
	log     []*entry
	first   int64 // sequence number of log[0], or of the next event
	last    time.Time
	readers map[*link]bool
}

// CreateHub creates a hub with n partitions and the consumer groups $Default and
// others. A hub of the name is deleted first, with its events.
func (s *Server) CreateHub(name string, n int, groups ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	born := time.Now().Truncate(time.Millisecond) // as precise as it is told
	if old := s.hubs[name]; old != nil {
		s.deleteHub(name)
		if !born.After(old.born) {
			born = old.born.Add(time.Millisecond)
		}
	}
	h := &hub{name: name, groups: append([]string{"$Default"}, groups...), born: born}
	for i := range n {
		h.parts = append(h.parts, &partition{id: strconv.Itoa(i), readers: map[*link]bool{}})
	}
	s.hubs[name] = h
}

// AddPartition adds a partition to a hub.
func (s *Server) AddPartition(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hubs[name]
	h.parts = append(h.parts, &partition{id: strconv.Itoa(len(h.parts)), readers: map[*link]bool{}})
}

// DeleteHub deletes a hub and detaches all its links.
func (s *Server) DeleteHub(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteHub(name)
}

func (s *Server) deleteHub(name string) {
	delete(s.hubs, name)
	for c := range s.conns {
		for _, ss := range c.sess {
			for _, l := range ss.links {
				if l.addr == name || strings.HasPrefix(l.addr, name+"/") {
					l.detach(amqpErr("amqp:not-found", "The messaging entity '"+name+"' could not be found."))
				}
			}
		}
	}
}

// TrimHub deletes the events of a partition below a sequence number, as retention
// does. Receivers below it continue at the first event that is left.
func (s *Server) TrimHub(name string, part int, below int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.hubs[name].parts[part]
	n := min(max(below-p.first, 0), int64(len(p.log)))
	p.log, p.first = slices.Clone(p.log[n:]), p.first+n
}

// TruncateHub deletes the events of a partition from a sequence number on, as a
// forced failover to a region without them does. The hub stays the same.
func (s *Server) TruncateHub(name string, part int, from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.hubs[name].parts[part]
	p.log = slices.Clone(p.log[:max(from-p.first, 0)])
	for l := range p.readers {
		l.detach(amqpErr("amqp:link:detach-forced", "The link was force detached."))
	}
}

// HubEvents returns the message IDs of a partition, in order.
func (s *Server) HubEvents(name string, part int) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.hubs[name].parts[part].log {
		id, _ := e.m.prop(0).(string)
		ids = append(ids, id)
	}
	return ids
}

// HubReaders returns the number of receivers of a partition.
func (s *Server) HubReaders(name string, part int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hubs[name].parts[part].readers)
}

// next is the sequence number of the next event.
func (p *partition) next() int64 { return p.first + int64(len(p.log)) }

// part returns the partition of an address, or nil.
func (s *Server) part(addr string) *partition {
	name, id, _ := strings.Cut(addr, "/Partitions/")
	name, group, grouped := strings.Cut(name, "/ConsumerGroups/")
	h := s.hubs[name]
	i, err := strconv.Atoi(id)
	if h == nil || err != nil || i < 0 || i >= len(h.parts) || grouped && !slices.Contains(h.groups, group) {
		return nil
	}
	return h.parts[i]
}

// attachHub attaches a link to a hub or a partition. Receivers of a partition and
// a group have epochs: one that is lower than another's is refused, and one that
// is not lower cuts off the others. A receiver without an epoch is below all.
func (s *session) attachHub(l *link, source, props any) Desc {
	srv := s.c.s
	if !strings.Contains(l.addr, "/Partitions/") {
		return Desc{}
	}
	p := srv.part(l.addr)
	if p == nil {
		return amqpErr("amqp:not-found", "The messaging entity '"+l.addr+"' could not be found.")
	}
	if !l.send {
		return Desc{}
	}
	l.epoch = -1
	if m, ok := props.(Map); ok {
		if e, ok := m.Get("com.microsoft:epoch").(int64); ok {
			l.epoch = e
		}
	}
	for o := range p.readers {
		if o.addr == l.addr && o.epoch > l.epoch {
			return amqpErr("amqp:link:stolen", "A receiver with a higher epoch of '"+strconv.FormatInt(o.epoch, 10)+"' already exists.")
		}
	}
	for o := range p.readers {
		if o.addr == l.addr && l.epoch >= 0 {
			o.detach(amqpErr("amqp:link:stolen", "New receiver with higher epoch of '"+strconv.FormatInt(l.epoch, 10)+
				"' is created hence current receiver with epoch '"+strconv.FormatInt(o.epoch, 10)+"' is getting disconnected."))
		}
	}
	l.pos = p.next()
	f, _ := source.(Desc).V.([]any)[7].(Map)
	for _, kv := range f {
		if d, ok := kv.V.(Desc); ok {
			if sel, ok := d.V.(string); ok {
				l.pos = p.seek(sel)
			}
		}
	}
	l.part = p
	l.settled = true // the service sends events settled
	p.readers[l] = true
	return Desc{}
}

// offset is the offset of an event, which clients must not take for its sequence
// number.
func offset(seq int64) int64 { return 4096 + 104*seq }

// seek returns the sequence number to start at. It understands the selectors that
// the client makes.
func (p *partition) seek(sel string) int64 {
	_, v, _ := strings.Cut(sel, "'")
	v = strings.TrimSuffix(v, "'")
	if v == "@latest" {
		return p.next()
	}
	n, _ := strconv.ParseInt(v, 10, 64)
	for _, e := range p.log {
		key := e.seq
		switch {
		case strings.Contains(sel, "x-opt-enqueued-time"):
			key = e.at.UnixMilli()
		case strings.Contains(sel, "x-opt-offset"):
			key = offset(e.seq)
		}
		if key > n || key == n && strings.Contains(sel, ">=") {
			return e.seq
		}
	}
	// It waits for the first event that matches, which may be far away.
	if strings.Contains(sel, "x-opt-sequence-number") {
		if !strings.Contains(sel, ">=") {
			n++
		}
		return max(n, p.next())
	}
	return p.next()
}

func (s *Server) publish(addr string, outer *message, ms []*message) {
	p := s.part(addr)
	if p == nil {
		h := s.hubs[addr]
		k, _ := outer.Annot.Get("x-opt-partition-key").(string)
		if k == "" && len(ms) > 0 {
			k, _ = ms[0].Annot.Get("x-opt-partition-key").(string)
		}
		i := h.rr
		if k != "" {
			f := fnv.New32a()
			f.Write([]byte(k))
			i = int(f.Sum32() % uint32(len(h.parts)))
		} else {
			h.rr++
		}
		p = h.parts[i%len(h.parts)]
	}
	p.last = s.now()
	for _, m := range ms {
		p.log = append(p.log, &entry{m: m, seq: p.next(), at: p.last, annot: m.Annot})
	}
	p.pump()
}

// pump sends events to the receivers that have credit.
func (p *partition) pump() {
	for l := range p.readers {
		l.pos = max(l.pos, p.first) // retention has passed it
		for l.canSend() && l.pos < p.next() {
			e := p.log[l.pos-p.first]
			l.pos++
			a := append(Map{}, e.annot...)
			a.Set(Sym("x-opt-sequence-number"), e.seq)
			a.Set(Sym("x-opt-offset"), strconv.FormatInt(offset(e.seq), 10))
			a.Set(Sym("x-opt-enqueued-time"), e.at)
			l.deliver([]byte(strconv.FormatInt(e.seq, 10)), e.m.encode(0, a), nil)
		}
	}
}

// manageHub answers a request for the properties of a hub or a partition.
func (s *Server) manageHub(m *message) (int32, string, any) {
	name, _ := m.App.Get("name").(string)
	h := s.hubs[name]
	if h == nil {
		return 404, "The messaging entity '" + name + "' could not be found.", nil
	}
	if m.App.Get("type") == "com.microsoft:eventhub" {
		ids := []string{}
		for _, p := range h.parts {
			ids = append(ids, p.id)
		}
		return 200, "OK", Map{{"name", name}, {"created_at", h.born}, {"partition_ids", ids}, {"partition_count", int32(len(ids))},
			{"georeplication_factor", int32(1)}}
	}
	id, _ := m.App.Get("partition").(string)
	p := s.part(name + "/Partitions/" + id)
	if p == nil {
		return 404, "The partition '" + id + "' could not be found.", nil
	}
	last, lastOffset, at := p.next()-1, "-1", time.Unix(0, 0)
	if last >= 0 {
		lastOffset, at = strconv.FormatInt(offset(last), 10), p.last
	}
	return 200, "OK", Map{{"name", name}, {"partition", id}, {"begin_sequence_number", p.first}, {"last_enqueued_sequence_number", last},
		{"last_enqueued_offset", lastOffset}, {"last_enqueued_time_utc", at}, {"is_partition_empty", len(p.log) == 0}}
}
