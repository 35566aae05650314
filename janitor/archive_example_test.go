package janitor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/memstore"
)

// line is an outcome in an archive. The same claim may be there twice; its lines are equal.
type line struct {
	Claim                string // names the outcome for ever
	Scope, Operation, ID string
	Rejected, Omitted    bool
	Type, Body           string
	Created              time.Time
}

// Outcomes go to a file of JSON lines before they are forgotten.
func ExampleJanitor_archive() {
	ctx, store, file := context.Background(), memstore.New(nil), new(bytes.Buffer) // in earnest an *os.File, and its Sync at the end
	charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Park,
		Policy: once.Policy{KeepOutcome: 1}} // a nanosecond, for the example
	_, err := once.Do(ctx, store, charge.For("order-4711").In("tenant-7"), func(context.Context, once.Key) (string, error) {
		return "ch_99", nil
	})
	if err != nil {
		log.Fatal(err)
	}

	j := janitor.Janitor{Store: store, Archive: func(_ context.Context, done []once.Record) error {
		lines := json.NewEncoder(file)
		for _, rec := range done {
			k, out := rec.Key, rec.Outcome
			if err := lines.Encode(line{fmt.Sprintf("%x", rec.Owner), k.Scope, k.Operation, k.ID, out.Rejected, out.Omitted,
				out.ContentType, string(out.Body), rec.Created}); err != nil {
				return err // nothing of these is forgotten, and they come again
			}
		}
		return nil
	}}
	if err := j.Sweep(ctx); err != nil {
		log.Fatal(err)
	}

	var kept line
	if err := json.Unmarshal(file.Bytes(), &kept); err != nil {
		log.Fatal(err)
	}
	fmt.Println(kept.Scope, kept.Operation, kept.ID, kept.Type, kept.Body)
	// Output: tenant-7 charge order-4711 application/json "ch_99"
}
