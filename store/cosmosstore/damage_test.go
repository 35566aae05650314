package cosmosstore

import (
	"bytes"
	"testing"
	"time"

	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/internal/castest"
)

// The id and the partition key are no part of it: an item with others is another
// one.
func TestNoDamagedBitRepeatsFinishedWork(t *testing.T) {
	row := castest.Finished(t)
	item, err := encode(row, itemID(row.Key.UUID()), "id", "", cas.Exactly(cas.Instant(time.Now().UnixMicro())))
	if err != nil {
		t.Fatal(err)
	}
	begin := bytes.Index(item, []byte(`"once"`))
	head := item[:begin:begin]
	castest.EveryBit(t, [][]byte{item[begin:]}, func(stored [][]byte) (cas.Row, error) { return decode(append(head, stored[0]...)) })
}

func TestEveryFormatIsRead(t *testing.T) {
	row := castest.Kept(t)
	item, err := encode(row, itemID(row.Key.UUID()), "id", "", cas.Exactly(cas.Instant(time.Now().UnixMicro())))
	if err != nil {
		t.Fatal(err)
	}
	castest.Formats(t, item, decode)
	row, err = decode(bytes.Replace(item, []byte(`"format":2`), []byte(`"format":3`), 1))
	castest.Newer(t, row, err)
}
