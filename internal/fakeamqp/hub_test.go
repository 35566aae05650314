package fakeamqp

import (
	"fmt"
	"testing"
	"time"
)

// hubOf returns a server with a hub of one partition, which has events with the
// sequence numbers from 0 to n-1.
func hubOf(t *testing.T, n int) (*Server, *partition) {
	t.Helper()
	s, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.CreateHub("orders", 1, "billing")
	for i := range n {
		s.mu.Lock()
		s.publish("orders", &message{}, []*message{{Props: []any{fmt.Sprint(i)}}})
		s.mu.Unlock()
	}
	return s, s.hubs["orders"].parts[0]
}

func TestReceiversStartWhereTheySay(t *testing.T) {
	s, p := hubOf(t, 10)
	s.TrimHub("orders", 0, 3)
	at := p.log[2].at.UnixMilli()
	for selector, want := range map[string]int64{
		"amqp.annotation.x-opt-offset > '-1'":                                3, // the oldest that is left
		"amqp.annotation.x-opt-offset > '@latest'":                           10,
		fmt.Sprintf("amqp.annotation.x-opt-offset > '%d'", offset(5)):        6,
		fmt.Sprintf("amqp.annotation.x-opt-offset >= '%d'", offset(5)):       5,
		"amqp.annotation.x-opt-sequence-number > '5'":                        6,
		"amqp.annotation.x-opt-sequence-number >= '5'":                       5,
		"amqp.annotation.x-opt-sequence-number >= '0'":                       3, // retention has deleted it
		"amqp.annotation.x-opt-sequence-number > '20'":                       21,
		"amqp.annotation.x-opt-sequence-number >= '20'":                      20,
		fmt.Sprintf("amqp.annotation.x-opt-enqueued-time > '%d'", at+100000): 10,
	} {
		if got := p.seek(selector); got != want {
			t.Errorf("%s starts at %d, want %d", selector, got, want)
		}
	}
}

// receiver attaches a receiver and returns it, or the condition of its refusal.
func receiver(s *Server, epoch any) (*link, any) {
	c := &conn{s: s, out: make(chan []byte, 99), sess: map[uint16]*session{}}
	x := &session{c: c, links: map[uint32]*link{}, deliveries: map[uint32]*delivery{}}
	l := &link{s: x, send: true, addr: "orders/ConsumerGroups/billing/Partitions/0"}
	x.links[0] = l
	properties := Map{}
	if epoch != nil {
		properties = append(properties, KV{"com.microsoft:epoch", epoch})
	}
	fail := x.attachHub(l, Desc{V: make([]any, 8)}, properties)
	if fail.Code != 0 {
		return nil, fail.V.([]any)[0]
	}
	return l, nil
}

// A receiver is refused if one with a higher epoch is there, and cuts off all
// others. One without an epoch is below all, and cuts off none.
func TestEpochsOfReceivers(t *testing.T) {
	s, p := hubOf(t, 0)
	read := func(want ...*link) {
		t.Helper()
		if len(p.readers) != len(want) {
			t.Errorf("%d receivers, want %d", len(p.readers), len(want))
		}
		for _, l := range want {
			if !p.readers[l] {
				t.Errorf("the receiver with epoch %d was cut off", l.epoch)
			}
		}
	}
	a, _ := receiver(s, nil)
	b, _ := receiver(s, nil)
	read(a, b)
	first, _ := receiver(s, int64(1))
	read(first)
	for _, lower := range []any{nil, int64(0)} {
		if _, why := receiver(s, lower); why != Sym("amqp:link:stolen") {
			t.Errorf("epoch %v: %v", lower, why)
		}
	}
	read(first)
	same, _ := receiver(s, int64(1))
	read(same)
	higher, _ := receiver(s, int64(2))
	read(higher)
	higher.close()
	lower, _ := receiver(s, int64(0))
	read(lower)
}

func TestPropertiesOfAHub(t *testing.T) {
	s, _ := hubOf(t, 10)
	ask := func(kind string) Map {
		code, text, value := s.manageHub(&message{App: Map{{"name", "orders"}, {"type", kind}, {"partition", "0"}}})
		if code != 200 {
			t.Fatal(code, text)
		}
		return value.(Map)
	}
	born := ask("com.microsoft:eventhub").Get("created_at").(time.Time)
	numbers := func() string {
		m := ask("com.microsoft:partition")
		return fmt.Sprint(m.Get("begin_sequence_number"), m.Get("last_enqueued_sequence_number"), m.Get("is_partition_empty"))
	}
	if got := numbers(); got != "0 9 false" {
		t.Error(got)
	}
	s.TrimHub("orders", 0, 4)
	s.TruncateHub("orders", 0, 8)
	if got := numbers(); got != "4 7 false" {
		t.Error(got)
	}
	s.TrimHub("orders", 0, 99)
	if got := numbers(); got != "8 7 true" {
		t.Error(got)
	}
	s.CreateHub("orders", 1)
	if again := ask("com.microsoft:eventhub").Get("created_at").(time.Time); !again.After(born) || again.Truncate(time.Millisecond) != again {
		t.Errorf("created at %v, and again at %v", born, again)
	}
	if got := numbers(); got != "0 -1 true" {
		t.Error(got)
	}
	s.DeleteHub("orders")
	if code, _, _ := s.manageHub(&message{App: Map{{"name", "orders"}}}); code != 404 {
		t.Error(code)
	}
}
