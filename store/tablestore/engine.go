package tablestore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/servicedate"
	"github.com/effectively-once/once/store/cas"
)

// engine is a table.
type engine struct {
	client    *aztables.Client
	clock     cas.LearnedClock
	partition func(once.Key) string
	wait      time.Duration // 0: maxWait
	settle    time.Duration // 0: maxUnsettled
	seen      memory
	reads     chan struct{} // bounds the messages that are read at once
}

// reply is what is known after a request.
type reply struct {
	raw  *http.Response // the last one; nil: there was none
	busy bool           // the service refused an earlier try
	err  error
}

// dateResolution is that of the header Date: whole seconds, and a while for which
// a server that is busy sends the same again.
const dateResolution = 1100 * time.Millisecond

// maxWait bounds how long a call waits for a service that is too busy.
const maxWait = time.Minute

// call sends a request, and learns the time from the response. If the service is
// too busy, it is asked again, until the context ends or maxWait is over. Nothing
// else is repeated.
func (e *engine) call(ctx context.Context, send func(context.Context) error) (r reply) {
	if r.err = ctx.Err(); r.err != nil {
		return r
	}
	began := time.Now()
	isBusy := func(resp *http.Response, err error) bool {
		busy := err == nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable)
		r.busy = r.busy || busy
		return busy && time.Since(began) < cmp.Or(e.wait, maxWait)
	}
	ctx = policy.WithRetryOptions(ctx, policy.RetryOptions{
		MaxRetries: 1000, RetryDelay: 100 * time.Millisecond, MaxRetryDelay: 5 * time.Second, ShouldRetry: isBusy,
	})
	r.err = send(policy.WithCaptureResponse(ctx, &r.raw))
	if date, ok := servicedate.Of(r.raw, "x-ms-request-id"); ok {
		e.clock.Learn(began, date, dateResolution)
	}
	return r
}

// ask learns the time.
func (e *engine) ask(ctx context.Context) error {
	_, err := e.get(ctx, "once-clock", "once-clock")
	return err
}

// partitionOf returns the PartitionKey of a key.
func (e *engine) partitionOf(k once.Key) (string, error) {
	if e.partition == nil {
		return defaultPartition(k.UUID()), nil
	}
	name := e.partition(k)
	isBad := func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || strings.ContainsRune(`/\#?'`, r) }
	if name == "" || len(name) > 512 || !utf8.ValidString(name) || strings.ContainsFunc(name, isBad) {
		return "", fmt.Errorf("%w: tablestore: the partition %q: use 1 to 512 bytes of UTF-8, without control characters and / \\ # ? '",
			once.ErrInvalid, name)
	}
	return name, nil
}

func defaultPartition(id [16]byte) string { return fmt.Sprintf("%02x", id[0]) }

// Load returns the row of a key.
func (e *engine) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	partition, err := e.partitionOf(k)
	if err != nil {
		return cas.Stored{}, err
	}
	return e.load(ctx, partition, k.UUID())
}

func (e *engine) load(ctx context.Context, partition string, id [16]byte) (cas.Stored, error) {
	text, err := e.get(ctx, partition, keyPrefix+digest(id))
	if err != nil || text == nil {
		return cas.Stored{}, err
	}
	return decode(text)
}

// get returns an entity, or nil if there is none.
func (e *engine) get(ctx context.Context, partition, row string) (text []byte, err error) {
	err = e.call(ctx, func(ctx context.Context) error {
		resp, err := e.client.GetEntity(ctx, partition, row, nil)
		text = resp.Value
		return err
	}).err
	if hasCode(err, aztables.ResourceNotFound) || hasCode(err, aztables.EntityNotFound) {
		return nil, nil
	}
	return text, err
}

// Put writes a row if it has the version over.
func (e *engine) Put(ctx context.Context, row cas.Row, over string) (is cas.Stored, err error) {
	w, err := e.write(row, over)
	if err != nil {
		return is, err
	}
	var tag azcore.ETag
	switch {
	case w.index != nil:
		var results []result
		if results, err = e.submit(ctx, []write{w}, nil); err == nil {
			tag = results[0].tag
		}
	case over == "":
		err = e.call(ctx, func(ctx context.Context) error {
			resp, err := e.client.AddEntity(ctx, w.row.Entity, nil)
			tag = resp.ETag
			return err
		}).err
	default:
		err = e.call(ctx, func(ctx context.Context) error {
			resp, err := e.client.UpdateEntity(ctx, w.row.Entity,
				&aztables.UpdateEntityOptions{IfMatch: w.row.IfMatch, UpdateMode: aztables.UpdateModeReplace})
			tag = resp.ETag
			return err
		}).err
	}
	switch {
	case isStale(err):
		return is, cas.ErrStale
	case hasCode(err, aztables.EntityTooLarge), hasCode(err, aztables.PropertyValueTooLarge), hasCode(err, requestBodyTooLarge):
		return is, fmt.Errorf("%w: %w", once.ErrOutcomeRefused, err)
	case err != nil:
		return is, err
	case tag == "":
		return is, errors.New("tablestore: the response to a write has no ETag")
	}
	return cas.Stored{Row: row, Version: version(row.Open(), tag)}, nil
}

// version returns the version of a row. It says whether the row is open, because
// then its index entity exists.
func version(open bool, tag azcore.ETag) string {
	if open {
		return "open " + string(tag)
	}
	return "not " + string(tag)
}

func splitVersion(v string) (open bool, tag azcore.ETag) {
	state, text, _ := strings.Cut(v, " ")
	return state == "open", azcore.ETag(text)
}

// write is the change of a row.
type write struct {
	row   aztables.TransactionAction
	index *aztables.TransactionAction // of its index entity; nil: it stays as it is
}

// write returns how to write a row over a version.
func (e *engine) write(row cas.Row, over string) (w write, err error) {
	partition, err := e.partitionOf(row.Key)
	if err != nil {
		return w, err
	}
	if w.row.Entity, err = encode(row, partition); err != nil {
		return w, err
	}
	wasOpen, tag := splitVersion(over)
	if w.row.ActionType = aztables.TransactionTypeAdd; over != "" {
		w.row.ActionType, w.row.IfMatch = aztables.TransactionTypeUpdateReplace, &tag
	}
	if e.partition != nil || row.Open() == wasOpen {
		return w, nil
	}
	w.index = &aztables.TransactionAction{ActionType: aztables.TransactionTypeInsertReplace}
	if wasOpen {
		w.index.ActionType = aztables.TransactionTypeDelete
	}
	w.index.Entity, err = json.Marshal(map[string]string{"PartitionKey": partition, "RowKey": openPrefix + digest(row.Key.UUID())})
	return w, err
}

// forget deletes the keys among these that are past their time, and drops the
// outcomes that are. It returns how many it changed.
func (e *engine) forget(ctx context.Context, found []cas.Stored, now cas.Now) (n int, err error) {
	var past []cas.Stored
	for _, is := range found {
		if is.At(now).Attempt == 0 {
			past = append(past, is)
			continue
		}
		if is.KeepOutcome == 0 || !now.Passed(is.KeepOutcome) { // an emulator compares times less exactly
			continue
		}
		is.Row.Outcome, is.Row.KeepOutcome = once.Outcome{}, 0
		if _, err = e.Put(ctx, is.Row, is.Version); err == nil {
			n++
		} else if !errors.Is(err, cas.ErrStale) {
			return n, err
		}
	}
	for len(past) > 0 {
		partition, err := e.partitionOf(past[0].Key)
		if err != nil {
			return n, err
		}
		several := 1
		for several < len(past) && several < maxActions/2 {
			if other, err := e.partitionOf(past[several].Key); err != nil || other != partition {
				break
			}
			several++
		}
		deleted, err := e.deleteAll(ctx, partition, past[:several])
		if n += deleted; err != nil {
			return n, err
		}
		past = past[several:]
	}
	return n, nil
}

// deleteAll deletes rows of a partition together, or one by one if some of them
// have changed.
func (e *engine) deleteAll(ctx context.Context, partition string, rows []cas.Stored) (n int, err error) {
	var all []write
	for _, is := range rows {
		open, tag := splitVersion(is.Version)
		entity := func(prefix string) []byte {
			return mustMarshal(map[string]any{"PartitionKey": partition, "RowKey": prefix + digest(is.Key.UUID())})
		}
		w := write{row: aztables.TransactionAction{ActionType: aztables.TransactionTypeDelete, Entity: entity(keyPrefix), IfMatch: &tag}}
		if open && e.partition == nil {
			w.index = &aztables.TransactionAction{ActionType: aztables.TransactionTypeDelete, Entity: entity(openPrefix)}
		}
		all = append(all, w)
	}
	if _, err = e.submit(ctx, all, nil); err == nil {
		return len(rows), nil
	}
	if !isStale(err) || len(rows) == 1 {
		if isStale(err) {
			err = nil
		}
		return 0, err
	}
	for _, is := range rows {
		deleted, err := e.deleteAll(ctx, partition, []cas.Stored{is})
		if n += deleted; err != nil {
			return n, err
		}
	}
	return n, nil
}

// requestBodyTooLarge is a code of the service that the client does not name.
const requestBodyTooLarge aztables.TableErrorCode = "RequestBodyTooLarge"

func hasCode(err error, code aztables.TableErrorCode) bool {
	var refused *azcore.ResponseError
	if errors.As(err, &refused) && refused.ErrorCode == string(code) {
		return true
	}
	var failed *actionError
	return errors.As(err, &failed) && failed.code == string(code)
}

// isStale reports whether a row was not written because it has another version.
func isStale(err error) bool {
	return hasCode(err, aztables.EntityAlreadyExists) || hasCode(err, aztables.UpdateConditionNotSatisfied) ||
		hasCode(err, aztables.ResourceNotFound) || hasCode(err, aztables.EntityNotFound)
}

// neverSent reports whether a request cannot have arrived.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
