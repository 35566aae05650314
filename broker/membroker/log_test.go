package membroker_test

import (
	"errors"
	"math"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
)

func TestEachGroupReadsTheWholeLog(t *testing.T) {
	b := membroker.New(nil)
	b.Log("l", "early", 1)
	publish(t, b, "l", "1", "2")
	want(t, open(t, b.Log("l", "early", 1), 9), "1 2")
	want(t, open(t, b.Log("l", "late", 1), 9), "1 2")
}

func TestAGroupKeepsTheContiguousPrefix(t *testing.T) {
	b := membroker.New(nil)
	src := b.Log("l", "g", 1)
	s := open(t, src, 4)
	publish(t, b, "l", "1", "2", "3", "4", "5", "6")
	ds := want(t, s, "1 2 3 4")
	must(t, s.Ack(ctx, []broker.Delivery{ds[0], ds[2]}))
	must(t, s.Close(ctx))
	s = open(t, src, 9)
	want(t, s, "2+2 3+2 4+2 5 6")
}

func TestPartitionsMoveWhenSessionsComeAndGo(t *testing.T) {
	b := membroker.New(nil)
	src := b.Log("l", "g", 2)
	publisher := b.Publisher()
	for _, id := range []string{"1", "2", "3", "4"} { // in turn to both partitions
		if errs := publisher.Publish(ctx, []*broker.Message{message(id, "l", "")}); errs != nil {
			t.Fatal(errs)
		}
	}
	first := open(t, src, 9)
	ds := want(t, first, "2 1 4 3")
	second := open(t, src, 9)
	moved := want(t, second, "1+2 3+2")
	if err := first.Ack(ctx, ds); err == nil {
		t.Error("a session settles deliveries of a partition that it has lost")
	}
	must(t, first.Close(ctx))
	empty(t, second) // the first had settled its own, and the second has its own out
	must(t, second.Ack(ctx, moved))
	must(t, second.Close(ctx))
	empty(t, open(t, src, 9))
}

func TestMoreSessionsThanPartitions(t *testing.T) {
	b := membroker.New(nil)
	src := b.Log("l", "g", 1)
	first, second := open(t, src, 9), open(t, src, 9)
	publish(t, b, "l", "1")
	want(t, first, "1")
	empty(t, second)
	must(t, first.Close(ctx))
	want(t, second, "1+2")
}

func TestARecreatedLogStartsAnew(t *testing.T) {
	b := membroker.New(nil)
	src := b.Log("l", "g", 1)
	queue := open(t, b.Queue("l"), 9)
	s := open(t, src, 9)
	publish(t, b, "l", "1", "2")
	old := want(t, s, "1 2")
	b.Recreate("l")
	b.Recreate("no such log")
	if err := s.Ack(ctx, old); err == nil {
		t.Error("messages of a log that is gone are settled")
	}
	s = open(t, src, 9)
	empty(t, s)
	publish(t, b, "l", "3")
	is := want(t, s, "3")[0].Position
	if was := old[0].Position; was.Log == is.Log || was.Partition != is.Partition || is.Offset != 0 {
		t.Errorf("the first message stood at %+v, and stands at %+v", was, is)
	}
	if err := s.(broker.Seeker).Seek(ctx, *old[0].Position); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("Seek in a log that is gone: %v", err)
	}
	want(t, queue, "1 2 3") // a queue of that name is another thing
}

func TestSeekMovesTheGroup(t *testing.T) {
	b := membroker.New(nil)
	src := b.Log("l", "g", 1)
	s := open(t, src, 3)
	publish(t, b, "l", "1", "2", "3", "4")
	at := *want(t, s, "1 2 3")[0].Position
	seek := func(s broker.Session, offset int64) {
		t.Helper()
		at.Offset = offset
		must(t, s.(broker.Seeker).Seek(ctx, at))
	}
	seek(s, 1)
	want(t, s, "3+2 4")
	seek(s, math.MinInt64)
	want(t, s, "1+2 2+2 3+3")
	seek(s, 2)
	must(t, s.Close(ctx))
	s = open(t, src, 9) // the group has kept it
	want(t, s, "4+2")
	seek(s, math.MaxInt64)
	publish(t, b, "l", "5")
	want(t, s, "5")

	idle := open(t, src, 9)
	if err := idle.(broker.Seeker).Seek(ctx, at); err == nil {
		t.Error("a session seeks in a partition that it does not have")
	}
}
