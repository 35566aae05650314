package outboxlog

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
)

// Random transactions are done in a random order. The confirmed position never
// passes a message that is open, and in the end it passes all.
func TestProgressConfirmsNothingThatIsOpen(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := progress{messages: make(map[messageKey]delivery)}
		type tx struct {
			end  uint64
			left []messageKey
		}
		var all []*tx
		ended := make(map[messageKey]uint64) // rows, and the position up to which the log has to be on the disk
		flushed := 0
		at := uint64(100)
		check := func() {
			limit := p.received
			for _, x := range all {
				x.left = slices.DeleteFunc(x.left, func(key messageKey) bool {
					until, is := ended[key]
					if is = is && until <= p.received; is {
						flushed++
					}
					return is
				})
				if len(x.left) > 0 {
					limit = min(limit, x.end-1)
				}
			}
			if p.confirmed > limit {
				t.Fatalf("seed %d: %d is confirmed, and %d is open", seed, p.confirmed, limit)
			}
		}
		for range 200 {
			at += 1 + r.Uint64N(50)
			switch r.IntN(4) {
			case 0:
				x := &tx{end: at + 10}
				all = append(all, x)
				p.begin()
				for i := range r.IntN(4) {
					key := messageKey{place: at, seq: int64(i)}
					x.left = append(x.left, key)
					p.arrive(key, 1)
					check()
				}
				p.pass(at + 5) // a keepalive within it
				check()
				at += 10
				p.commit(at)
			case 1:
				p.pass(at)
			default:
				i := slices.IndexFunc(all, func(x *tx) bool { return len(x.left) > 0 && r.IntN(3) > 0 })
				if i < 0 {
					continue
				}
				key := all[i].left[0]
				if r.IntN(2) == 0 {
					all[i].left = all[i].left[1:]
					p.done([]messageKey{key})
				} else { // it stays open until the log is on the disk
					ended[key] = at + 1
					p.rowsEnded([]messageKey{key}, at+1)
				}
			}
			check()
		}
		for _, x := range all {
			p.done(x.left)
		}
		p.pass(at + 2)
		if p.confirmed != at+2 || len(p.messages) > 0 || len(p.commits) > 0 || flushed == 0 {
			t.Fatalf("seed %d: %d is confirmed, want %d; %+v", seed, p.confirmed, at+2, p)
		}
	}
}

func TestTransactionNumbersGetTheirHighBits(t *testing.T) {
	const epoch = uint64(7) << 32
	for _, c := range []struct{ near, want uint64 }{
		{epoch + 10, epoch + 12}, {epoch + 10, epoch - 3}, {epoch - 3, epoch + 5}, {1000, 990}, {epoch + 1<<31, epoch + 1<<31 + 9},
	} {
		b := make([]byte, 16, 20)
		b = append(b, byte(c.want>>24), byte(c.want>>16), byte(c.want>>8), byte(c.want))
		if tx := readBegin(&buffer{rest: b}, c.near); tx.xid != c.want {
			t.Errorf("near %d: %d, want %d", c.near, tx.xid, c.want)
		}
	}
}

func TestATruncatedMessageOfTheProtocolIsAnError(t *testing.T) {
	row := []byte("\x00\x00\x00\x07N\x00\x02t\x00\x00\x00\x0242t\x00\x00\x00\x01a")
	table := []byte("\x00\x00\x00\x07s\x00once_outbox\x00d\x00\x02\x01seq\x00\x00\x00\x00\x14\xff\xff\xff\xff\x00id\x00\x00\x00\x00\x19\xff\xff\xff\xff")
	content := `{"id":"1","topic":"t"}` + "\nbody"
	emitted := []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x09s.once_outbox.1\x00\x00\x00\x00\x1b" + content)
	fresh := func() *tail {
		tail := &tail{log: &Log{mode: RowsByLog}, names: Names{schema: "s", relation: "once_outbox", prefix: "s.once_outbox.1"},
			relations: map[uint32]relation{7: {schema: "s", name: "once_outbox", columns: []string{"seq", "id"}}}}
		tail.progress.messages = make(map[messageKey]delivery)
		return tail
	}
	for kind, whole := range map[byte][]byte{'I': row, 'R': table, 'M': emitted} {
		message := append([]byte("w\x00\x00\x00\x00\x00\x00\x00\x0900000000"+"00000000"), kind)
		message = append(message, whole...)
		for n := 1; n <= len(message); n++ {
			tail := fresh()
			if err := tail.handle(message[:n]); (err == nil) != (n == len(message)) {
				t.Errorf("%c: %d of %d bytes: %v", kind, n, len(message), err)
			}
			if len(tail.queue) > 0 && n < len(message) {
				t.Errorf("%c: %d of %d bytes are a message", kind, n, len(message))
			}
		}
	}
	tail := fresh()
	_ = tail.handle(append([]byte("w0000000000000000"+"00000000I"), row...))
	if len(tail.queue) != 1 || tail.queue[0].message.Seq != 42 || tail.queue[0].message.Message.ID != "a" {
		t.Errorf("got %+v", tail.queue)
	}
}

// Messages that arrive while a tail is being closed are dropped.
func TestDroppedMessagesAreNotConfirmed(t *testing.T) {
	tail := &tail{log: &Log{}, names: Names{prefix: "p"}, closing: true}
	tail.progress.messages = make(map[messageKey]delivery)
	head := "w" + strings.Repeat("\x00", 24)
	for _, change := range []string{
		"B\x00\x00\x00\x00\x00\x00\x00\x10" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x01",
		"M\x01\x00\x00\x00\x00\x00\x00\x00\x09p\x00\x00\x00\x00\x03{}\n",
		"C\x00\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x20" + strings.Repeat("\x00", 8),
	} {
		if err := tail.handle([]byte(head + change)); err != nil {
			t.Fatal(err)
		}
	}
	if tail.progress.received != 0x20 || tail.progress.confirmed != 0 || len(tail.queue) > 0 {
		t.Errorf("%d is confirmed of %d, %d messages wait", tail.progress.confirmed, tail.progress.received, len(tail.queue))
	}
}

func TestAMessageOfNoTransactionWakesTheReceiver(t *testing.T) {
	tail := &tail{log: &Log{}, names: Names{prefix: "p"}, arrived: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	tail.progress.messages = make(map[messageKey]delivery)
	content := `{"id":"1","topic":"t"}` + "\n"
	got := make(chan struct{})
	go func() {
		for range tail.arrived {
			for {
				if batch, _ := tail.peek(1); len(batch) == 0 {
					break
				}
				tail.mu.Lock()
				tail.queue, tail.bytes = nil, 0
				tail.mu.Unlock()
				got <- struct{}{}
			}
		}
	}()
	defer close(tail.arrived)
	for i := range 20_000 {
		change := "M\x00" + string(binary.BigEndian.AppendUint64(nil, uint64(i+1))) + "p\x00\x00\x00\x00" +
			string(rune(len(content))) + content
		if err := tail.handle([]byte("w" + strings.Repeat("\x00", 24) + change)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-got:
		case <-time.After(testenv.Patience):
			t.Fatalf("message %d woke nobody", i)
		}
	}
}

func FuzzLogContent(f *testing.F) {
	f.Add([]byte(`{"id":"1","topic":"t","key":"k","header":{"a":"b"},"time":"2026-01-02T03:04:05.6Z"}` + "\nbody"))
	f.Fuzz(func(t *testing.T, content []byte) {
		m, cause, err := decodeContent(content)
		if err != nil {
			return
		}
		again, err := encodeContent(&store.Outgoing{Message: m, Cause: cause})
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := decodeContent(again)
		if err != nil || back.ID != m.ID || back.Topic != m.Topic || string(back.Body) != string(m.Body) || !back.Time.Equal(m.Time) {
			t.Errorf("%+v became %+v, %v", m, back, err)
		}
	})
}

func TestEmitCallContainsAllMessages(t *testing.T) {
	for n := 1; n < 3; n++ {
		ms := make([]store.Outgoing, n)
		for i := range ms {
			ms[i].Message = broker.Message{ID: "1", Topic: "t"}
		}
		_, args, err := EmitCall(Names{prefix: "p"}, ms)
		if err != nil || len(args) < 2 || args[0] != "p" {
			t.Errorf("got %v, %v", args, err)
			continue
		}
		contents, several := args[1].([][]byte)
		if _, one := args[1].([]byte); one != (n == 1) || several != (n > 1) || several && len(contents) != n {
			t.Errorf("got %v, %v", args, err)
		}
	}
}
