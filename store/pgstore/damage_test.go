package pgstore_test

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/storetest"
)

// damages are statements that a client could run.
func (f *fixture) damages() (all []storetest.Damage) {
	run := func(ctx context.Context, table, set, where string) error {
		statement := fmt.Sprintf("UPDATE %s.%s SET %s WHERE %s", f.schema, table, set, where)
		for range 10 { // a row that is moved to another partition beside it is not found
			tag, err := f.admin.Exec(ctx, statement)
			if err != nil || tag.RowsAffected() == 1 {
				return err
			}
		}
		return fmt.Errorf("no row is damaged by\n%s", statement)
	}
	for _, set := range []string{"header = 'x'", "header = '[1]'", `header = '{"text":{"a":1}}'`, `header = '{"base64":{"%":"eA=="}}'`,
		"produced = 'yesterday'", "produced = '2009-02-30T00:00:00Z', created = -9223372036854775808",
		"header = '{', created = 9223372036854775807"} {
		all = append(all, storetest.Damage{Name: "message: " + set,
			Outgoing: func(ctx context.Context, id string) error {
				return run(ctx, "once_outbox", set, fmt.Sprintf("id = '%s'", id))
			},
			Shelved: func(ctx context.Context, consumer, id string) error {
				return run(ctx, "once_shelf", set, fmt.Sprintf("consumer = '%s' AND message_id = '%s'", consumer, id))
			}})
	}
	for _, set := range []string{"seen = 0", "seen = -9223372036854775808", "seen = 9223372036854775807", "key_name = ''",
		"key_name = '', source = '', seen = 7", "name = ''"} {
		all = append(all, storetest.Damage{Name: "consumer: " + set, Consumer: func(ctx context.Context, called string) (func(context.Context) error, error) {
			var source, keys string
			var seen int64
			where := fmt.Sprintf("id = '%s'", name.Format(name.Digest("consumer", called)))
			err := f.admin.QueryRow(ctx, fmt.Sprintf("SELECT source, key_name, seen FROM %s.once_consumer WHERE %s", f.schema, where)).Scan(&source, &keys, &seen)
			if err != nil {
				return nil, err
			}
			undo := fmt.Sprintf("name = '%s', source = '%s', key_name = '%s', seen = %d", called, source, keys, seen)
			return func(ctx context.Context) error { return run(ctx, "once_consumer", undo, where) }, run(ctx, "once_consumer", set, where)
		}})
	}
	for _, set := range []string{"epoch = 0", "epoch = -9223372036854775808", "epoch = 9223372036854775807", "log_name = ''",
		"consumer = 'another'", "consumer_id = '" + name.Format(name.Digest("consumer", "another")) + "'", "partition_name = ''"} {
		all = append(all, storetest.Damage{Name: "position: " + set, Position: func(ctx context.Context, consumer, partition string) error {
			return run(ctx, "once_position", set, fmt.Sprintf("id = '%s'", name.Format(name.Digest("position", consumer, partition))))
		}})
	}
	for _, set := range []string{"status = 9", "status = -1", "id = 'another'", "operation = operation, id = ''"} {
		all = append(all, storetest.Damage{Name: "record: " + set, Record: func(ctx context.Context, k once.Key) error {
			return run(ctx, "once_record", set, fmt.Sprintf("key = '%s'", name.Format(k.UUID())))
		}})
	}
	return all
}
