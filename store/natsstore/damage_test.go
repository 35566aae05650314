package natsstore

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/internal/castest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestNoDamagedBitRepeatsFinishedWork(t *testing.T) {
	row := castest.Finished(t)
	m, err := newMessage("s", row)
	if err != nil {
		t.Fatal(err)
	}
	stored := [][]byte{[]byte(recordHeader), []byte(m.Header.Get(recordHeader)), m.Data}
	castest.EveryBit(t, stored, func(stored [][]byte) (cas.Row, error) {
		raw := &jetstream.RawStreamMsg{Header: nats.Header{string(stored[0]): {string(stored[1])}}, Data: stored[2]}
		return readRow(raw, row.Key.UUID())
	})
}

// A sample has the header and the body, each in a line.
func TestEveryFormatIsRead(t *testing.T) {
	kept := castest.Kept(t)
	m, err := newMessage("s", kept)
	if err != nil {
		t.Fatal(err)
	}
	read := func(sample []byte) (cas.Row, error) {
		head, body, _ := bytes.Cut(sample, []byte("\n"))
		raw := &jetstream.RawStreamMsg{Header: nats.Header{recordHeader: {string(head)}}, Data: body}
		return readRow(raw, kept.Key.UUID())
	}
	stored := fmt.Append(nil, m.Header.Get(recordHeader), "\n", string(m.Data))
	castest.Formats(t, stored, read)
	row, err := read(bytes.Replace(stored, []byte(`"format":2`), []byte(`"format":3`), 1))
	castest.Newer(t, row, err)
}
