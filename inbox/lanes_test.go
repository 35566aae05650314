package inbox

import (
	"fmt"
	"testing"
)

func inLane(names ...string) (items []*item) {
	for i, name := range names {
		it := &item{lane: name}
		it.key.ID = fmt.Sprint(i)
		items = append(items, it)
	}
	return items
}

func ids(items []*item) (s string) {
	for _, it := range items {
		s += it.key.ID
	}
	return s
}

func TestALaneIsTakenByOne(t *testing.T) {
	l := newLanes()
	l.put(inLane("a", "a", "b", "", "a"))
	first, lanes := l.take(1, false)
	if ids(first) != "0" {
		t.Fatal(ids(first))
	}
	rest, others := l.take(10, false)
	if ids(rest) != "23" { // not those behind the first
		t.Fatal(ids(rest))
	}
	l.release(lanes, nil, nil)
	if behind, _ := l.take(10, false); ids(behind) != "14" {
		t.Fatal(ids(behind))
	}
	l.release(others, nil, nil)
}

func TestOneLaneAtATime(t *testing.T) {
	l := newLanes()
	l.put(inLane("a", "b", "a"))
	if got, _ := l.take(10, true); ids(got) != "02" {
		t.Error(ids(got))
	}
}

func TestCloseReturnsItemsThatNoWorkerHas(t *testing.T) {
	l := newLanes()
	l.put(inLane("a", "a", "", ""))
	got, from := l.take(1, false)
	left := l.close()
	if ids(got) != "0" || len(left) != 3 {
		t.Error(ids(got), ids(left))
	}
	if more, _ := l.take(1, false); more != nil {
		t.Error("closed lanes were taken from")
	}
	if back := l.release(from, got, nil); ids(back) != "0" {
		t.Error("what came back after the end was lost:", ids(back))
	}
}

func TestADroppedLaneThatIsReadyHoldsUpNobody(t *testing.T) {
	l := newLanes()
	l.put(inLane("a", "b"))
	l.drop("a")
	if got, _ := l.take(1, true); ids(got) != "1" {
		t.Errorf("take returned %q although the lanes are open", ids(got))
	}
	l.put(inLane("a"))
	if got, _ := l.take(1, true); ids(got) != "0" {
		t.Errorf("the lane that was dropped stays busy: %q", ids(got))
	}
}
