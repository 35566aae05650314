package conncut_test

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/effectively-once/once/broker/rabbitbroker/internal/conncut"
)

var errBroken = errors.New("broken")

// hold returns a connection to a peer that neither reads nor writes.
func hold(t *testing.T, ctx context.Context) (c *conncut.Conn, peer net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { _ = errors.Join(near.Close(), far.Close()) })
	return conncut.Wrap(ctx, near), far
}

// write blocks until the connection ends.
func write(c net.Conn) error {
	_, err := c.Write([]byte("x"))
	return err
}

func TestAWriteThatHangsEndsWithItsContext(t *testing.T) {
	c, peer := hold(t, t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = peer.Read(make([]byte, 1)) // half of it
		cancel()
	}()
	if err := c.During(ctx, func() error { _, err := c.Write([]byte("xx")); return err }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the context has ended", err)
	}
	if !c.IsCut() {
		t.Error("the connection goes on after half a write")
	}
}

func TestACallThatEndsSparesTheConnection(t *testing.T) {
	c, _ := hold(t, t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.During(ctx, func() error { cancel(); return nil }); err != nil {
		t.Error(err)
	}
	if err := c.During(t.Context(), func() error { return errBroken }); !errors.Is(err, errBroken) {
		t.Error(err)
	}
	ran := false
	if err := c.During(ctx, func() error { ran = true; return nil }); !errors.Is(err, context.Canceled) || ran {
		t.Errorf("%v, ran: %v, want that it has not begun", err, ran)
	}
	// A cut comes later, so a write waits for it.
	if err := c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := write(c); !errors.Is(err, os.ErrDeadlineExceeded) || c.IsCut() {
		t.Errorf("%v, cut: %v, want that the connection goes on", err, c.IsCut())
	}
}

func TestOneThatIsHeldEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	held, _ := hold(t, ctx)
	released, _ := hold(t, ctx)
	if !released.Release() {
		t.Error("it ended before its context")
	}
	cancel()
	if err := write(held); err == nil || !held.IsCut() {
		t.Errorf("%v, want that it was cut", err)
	}
	if held.Release() {
		t.Error("it says that it goes on")
	}
	if released.IsCut() {
		t.Error("one that was released is cut")
	}
}

func TestReadingThatFailsEndsAWriteThatHangs(t *testing.T) {
	c, _ := hold(t, t.Context())
	done := make(chan error)
	go func() { done <- write(c) }()
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("there was nothing to read")
	}
	if err := <-done; err == nil {
		t.Error("nobody has read what was written")
	}
}

func TestWaitGivesUpAndDrops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	let, dropped := make(chan struct{}), make(chan int)
	made := func() (int, error) { cancel(); <-let; return 7, nil }
	got, err := conncut.Wait(ctx, made, func(n int) { dropped <- n })
	if got != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d, %v, want that it was given up", got, err)
	}
	close(let)
	if n := <-dropped; n != 7 {
		t.Errorf("%d was dropped", n)
	}
}

func TestWaitReturnsWhatWasMade(t *testing.T) {
	drop := func(n int) { t.Errorf("%d was dropped", n) }
	if got, err := conncut.Wait(t.Context(), func() (int, error) { return 7, nil }, drop); got != 7 || err != nil {
		t.Error(got, err)
	}
	if _, err := conncut.Wait(t.Context(), func() (int, error) { return 7, errBroken }, drop); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

func TestAnErrorTellsThatItsContextHasEnded(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := conncut.EndedBy(ended, errBroken); !errors.Is(err, errBroken) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := conncut.EndedBy(t.Context(), errBroken); err != errBroken {
		t.Error(err)
	}
	if err := conncut.EndedBy(ended, context.Canceled); err != context.Canceled {
		t.Error(err)
	}
}
