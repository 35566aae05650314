//go:build go1.25

package inbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// acquiring calls acquire in a goroutine. It returns how to ask whether the lock
// was acquired, and how to release it.
func acquiring(t *testing.T, acquire func(context.Context) (func(), error)) (acquired func() bool, release func()) {
	got := make(chan func(), 1)
	go func() {
		if unlock, err := acquire(t.Context()); err == nil {
			got <- unlock
		}
	}()
	acquired = func() bool {
		synctest.Wait()
		return len(got) > 0
	}
	return acquired, func() { (<-got)() }
}

func TestAnExclusiveAttemptRunsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newAttemptLock()
		a, releaseA := acquiring(t, l.share)
		b, releaseB := acquiring(t, l.share)
		if !a() || !b() {
			t.Fatal("two attempts could not share the lock")
		}
		exclusive, releaseExclusive := acquiring(t, l.exclude)
		synctest.Wait()
		late, releaseLate := acquiring(t, l.share)
		releaseA()
		if exclusive() || late() {
			t.Fatal("an attempt runs beside another, or passed one that waits for the lock")
		}
		releaseB()
		if !exclusive() || late() {
			t.Fatal("the exclusive attempt does not have the lock for itself")
		}
		releaseExclusive()
		if !late() {
			t.Fatal("the lock is free, and an attempt could not share it")
		}
		releaseLate()
	})
}

func TestAHandlerThatHangsDoesNotStopOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newAttemptLock()
		hanging, end := acquiring(t, l.share)
		if !hanging() {
			t.Fatal("the lock is free, and an attempt could not share it")
		}
		exclusive, release := acquiring(t, l.exclude)
		if exclusive() {
			t.Fatal("an exclusive attempt runs beside another")
		}
		time.Sleep(exclusiveWait + time.Second)
		other, releaseOther := acquiring(t, l.share)
		if !exclusive() || !other() {
			t.Error("attempts wait for a handler that hangs")
		}
		release()
		releaseOther()
		end()
	})
}
