//go:build go1.25

package inbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// entering calls enter beside the test, and returns how to ask whether it got in, and how to leave.
func entering(t *testing.T, enter func(context.Context) (func(), error)) (in func() bool, leave func()) {
	entered := make(chan func(), 1)
	go func() {
		leave, err := enter(t.Context())
		if err == nil {
			entered <- leave
		}
	}()
	in = func() bool {
		synctest.Wait()
		return len(entered) > 0
	}
	return in, func() { (<-entered)() }
}

func TestOneIsAloneOnTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFloor()
		a, leaveA := entering(t, f.share)
		b, leaveB := entering(t, f.share)
		if !a() || !b() {
			t.Fatal("two could not share the floor")
		}
		alone, leaveAlone := entering(t, f.alone)
		synctest.Wait()
		late, leaveLate := entering(t, f.share)
		leaveA()
		if alone() || late() {
			t.Fatal("one was let in beside another, or passed one that waits to be alone")
		}
		leaveB()
		if !alone() || late() {
			t.Fatal("one is to be alone when the others have left")
		}
		leaveAlone()
		if !late() {
			t.Fatal("nobody is alone, and one was not let in")
		}
		leaveLate()
	})
}

// A handler that hangs does not stop all others.
func TestOneIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFloor()
		hangs, end := entering(t, f.share)
		if !hangs() {
			t.Fatal("the floor is free")
		}
		alone, leave := entering(t, f.alone)
		if alone() {
			t.Fatal("it is not alone")
		}
		time.Sleep(aloneWithin + time.Second)
		other, leaveOther := entering(t, f.share)
		if !alone() || !other() {
			t.Error("all stand still for one that hangs")
		}
		leave()
		leaveOther()
		end()
	})
}
