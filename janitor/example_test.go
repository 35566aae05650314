package janitor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/memstore"
)

// Outcomes go to a file of JSON lines before they are forgotten. A line may be there twice: key and attempt say so.
func ExampleJanitor_archive() {
	ctx, store, file := context.Background(), memstore.New(nil), new(bytes.Buffer) // in earnest a file, and a Sync behind the lines
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
			if err := lines.Encode(map[string]any{"scope": rec.Key.Scope, "operation": rec.Key.Operation, "id": rec.Key.ID,
				"attempt": rec.Attempt, "rejected": rec.Outcome.Rejected, "omitted": rec.Outcome.Omitted,
				"type": rec.Outcome.ContentType, "body": string(rec.Outcome.Body)}); err != nil {
				return err // nothing of these is forgotten, and they come again
			}
		}
		return nil
	}}
	if err := j.Sweep(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Print(file)
	// Output: {"attempt":1,"body":"\"ch_99\"","id":"order-4711","omitted":false,"operation":"charge","rejected":false,"scope":"tenant-7","type":"application/json"}
}
