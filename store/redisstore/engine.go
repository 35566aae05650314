package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// engine is what the rules of transactions in package cas need of Redis.
type engine struct{ *Store }

var _ cas.QueueEngine[*Tx] = engine{}

// Load returns the record of a key.
func (e engine) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	sent := time.Now()
	reply, err := e.run(ctx, e.scripts.load, e.keys(k.UUID())).Slice()
	if err != nil {
		e.checkAgain(err)
		return cas.Stored{}, explain(err)
	}
	is, now, err := readStored(reply)
	if err == nil {
		e.clock.Learn(sent, now.Time(), time.Microsecond)
	}
	return is, err
}

// Put writes a record.
func (e engine) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	rev := rand.Text()
	err := e.write(ctx, []cas.Change{{Was: cas.Stored{Version: over}, Is: row}}, nil, nil, rev)
	if errors.Is(err, once.ErrConflict) {
		err = cas.ErrStale
	}
	if err != nil {
		return cas.Stored{}, err
	}
	return cas.Stored{Row: row, Version: versionOf(row, rev)}, nil
}

// versionOf is what version of record.lua returns.
func versionOf(row cas.Row, rev string) string {
	return fmt.Sprintf("%d %d %s %d %d %s", row.Status, row.Attempt, row.Owner[:], row.Lease, row.Updated, rev)
}

// Begin returns a transaction that Transact ends.
func (e engine) Begin() *Tx {
	tx := e.Store.Begin()
	tx.managed = true
	return tx
}

// Changes returns what a transaction holds.
func (e engine) Changes(tx *Tx) (*cas.Changes, error) {
	if err := tx.use(e.Store); err != nil {
		return nil, err
	}
	return &tx.changes, nil
}

// Commit ends a transaction.
func (e engine) Commit(ctx context.Context, tx *Tx) error { return e.commit(ctx, tx) }

// Rollback drops a transaction.
func (e engine) Rollback(tx *Tx) { tx.ended = true }

// askTime asks the server for its time.
func (s *Store) askTime(ctx context.Context) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	sent := time.Now()
	now, err := s.client.Time(ctx).Result()
	if err == nil {
		s.clock.Learn(sent, now, time.Microsecond)
	}
	return err
}

// appendRow appends what commit.lua writes of a record.
func appendRow(args []any, row cas.Row, rev string) []any {
	number := func(i cas.Instant) string { return strconv.FormatInt(int64(i), 10) }
	var outcome []byte
	expires := ""
	if row.Status == once.Done {
		outcome = withFields(row)
	}
	if at, ok := row.Expires(); ok {
		expires = number(at)
	}
	args = append(args, digest(row.Key.UUID()), int(row.Status), row.Reason, outcome, number(min(row.KeepOutcome, row.KeepKey)), expires)
	fields := []any{"attempt", row.Attempt, "owner", row.Owner[:], "lease", number(row.Lease), "fingerprint", row.Fingerprint, "cause", cause(row.Cause),
		"scope", row.Key.Scope, "operation", row.Key.Operation, "id", row.Key.ID,
		"created", number(row.Created), "updated", number(row.Updated), "rev", rev}
	if row.KeepKey != 0 {
		fields = append(fields, "keep_key", number(row.KeepKey))
	}
	if row.Firm {
		fields = append(fields, "firm", "1")
	}
	if out := row.Outcome; row.Status == once.Done {
		fields = append(fields, "content_type", out.ContentType, "flags", flags(out), "sum", out.Sum, "keep_outcome", number(row.KeepOutcome))
	}
	return append(append(args, len(fields)), fields...)
}

// readStored reads what load.lua returns: the record, and the server's time.
func readStored(reply []any) (is cas.Stored, now cas.Instant, err error) {
	text := func(v any) string {
		s, ok := v.(string)
		if !ok && err == nil {
			err = fmt.Errorf("%w: a script returned %v", once.ErrCorrupt, v)
		}
		return s
	}
	number := func(v string) int64 {
		if v == "" {
			return 0
		}
		n, failed := strconv.ParseInt(v, 10, 64)
		if failed != nil && err == nil {
			err = fmt.Errorf("%w: a record has %q for a number", once.ErrCorrupt, v)
		}
		return n
	}
	const parts = 4
	if len(reply) != parts {
		return is, 0, fmt.Errorf("%w: a script returned %d values", once.ErrCorrupt, len(reply))
	}
	flat, _ := reply[3].([]any)
	fields := make(map[string]string, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		fields[text(flat[i])] = text(flat[i+1])
	}
	now = cas.Instant(number(text(reply[1])))
	if is.Version = text(reply[0]); is.Version == "" {
		return is, now, err
	}
	at := func(name string) cas.Instant { return cas.Instant(number(fields[name])) }
	is.Row = cas.Row{
		Key:     once.Key{Scope: fields["scope"], Operation: fields["operation"], ID: fields["id"]},
		Status:  once.Status(number(fields["status"])),
		Attempt: number(fields["attempt"]),
		Reason:  fields["reason"],
		Created: at("created"), Updated: at("updated"), Lease: at("lease"), KeepKey: at("keep_key"),
		Firm: fields["firm"] == "1",
	}
	copy(is.Owner[:], fields["owner"])
	copy(is.Cause[:], fields["cause"])
	if fields["fingerprint"] != "" {
		is.Fingerprint = []byte(fields["fingerprint"])
	}
	if is.Status == once.Done {
		f := number(fields["flags"])
		is.Outcome = once.Outcome{Body: []byte(text(reply[2])), ContentType: fields["content_type"], Rejected: f&flagRejected != 0,
			Omitted: f&flagOmitted != 0, Sum: uint32(number(fields["sum"]))}
		// Redis has dropped the outcome by its own clock, of which less is known here.
		if is.KeepOutcome = at("keep_outcome"); is.KeepOutcome <= now {
			is.KeepOutcome = 0
		}
	}
	return is, now, err
}
