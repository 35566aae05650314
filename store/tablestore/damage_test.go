package tablestore

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/internal/castest"
)

// The keys of an entity, and its ETag, are no part of it: they say which one it is.
func TestNoDamagedBitRepeatsFinishedWork(t *testing.T) {
	text, err := encode(castest.Finished(t), "p")
	if err != nil {
		t.Fatal(err)
	}
	var all, keys map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	keys = map[string]any{"PartitionKey": all["PartitionKey"], "RowKey": all["RowKey"], "odata.etag": `W/"1"`}
	delete(all, "PartitionKey")
	delete(all, "RowKey")
	head := mustMarshal(keys)
	castest.EveryBit(t, [][]byte{mustMarshal(all)[1:]}, func(stored [][]byte) (cas.Row, error) {
		is, err := decode(append(append(head[:len(head)-1:len(head)-1], ','), stored[0]...))
		return is.Row, err
	})
}

func TestEveryFormatIsRead(t *testing.T) {
	text, err := encode(castest.Kept(t), "p")
	if err != nil {
		t.Fatal(err)
	}
	read := func(text []byte) (cas.Row, error) {
		is, err := decode(append([]byte(`{"odata.etag":"W/1",`), text[1:]...))
		return is.Row, err
	}
	castest.Formats(t, text, read)
	row, err := read(bytes.Replace(text, []byte(`"Format":"2"`), []byte(`"Format":"3"`), 1))
	castest.Newer(t, row, err)
}
