package dynamostore

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

type item = map[string]types.AttributeValue

// attributes are the names of the attributes of a record, besides those that
// Options names. One that is empty or false is absent.
var attributes = []string{"key_scope", "key_operation", "key_id", "status", "attempt", "owner", "cause", "fingerprint", "reason",
	"created", "updated", "lease", "keep_outcome", "keep_key", "firm", "outcome", "content_type", "rejected", "omitted", "sum", "version", "text", "bytes", "format", "check"}

// sortValue is the sort key of all records.
const sortValue = "once"

// timeLayout is RFC 3339 in UTC, with the microseconds of a [cas.Instant].
const timeLayout = "2006-01-02T15:04:05.000000Z"

// key returns the keys of an item.
func (o *Options) key(id [16]byte) item {
	key := item{o.PartitionKey: text(o.Prefix + hex.EncodeToString(id[:]))}
	if o.SortKey != "" {
		key[o.SortKey] = text(sortValue)
	}
	return key
}

// docPrefix begins the partition keys of documents. The key of a record has no
// colon.
func (o *Options) docPrefix() string { return o.Prefix + "doc:" }

// docKey returns the keys of a document.
func (o *Options) docKey(name string) item {
	key := item{o.PartitionKey: text(o.docPrefix() + name)}
	if o.SortKey != "" {
		key[o.SortKey] = text(sortValue)
	}
	return key
}

// shards is in how many partitions of the index open records are, because one
// takes a thousand writes in a second. They are in the order of the digests.
const shards = 16

func shardOf(id [16]byte) int { return int(id[0]) * shards / 256 }

// shard returns the partition key of a shard.
func (o *Options) shard(n int) string { return fmt.Sprintf("%s%x", o.Prefix, n) }

// encode returns the item of a row.
func (o *Options) encode(r cas.Row, version string) item {
	id := r.Key.UUID()
	it := o.key(id)
	set := func(name string, value types.AttributeValue, is bool) {
		if is {
			it[name] = value
		}
	}
	bytes := func(name string, b []byte) { set(name, &types.AttributeValueMemberB{Value: b}, len(b) > 0) }
	words := func(name, s string) { set(name, text(s), s != "") }
	flag := func(name string, is bool) { set(name, &types.AttributeValueMemberBOOL{Value: true}, is) }
	at := func(name string, i cas.Instant) { set(name, text(i.Time().UTC().Format(timeLayout)), i != 0) }

	it["format"], it["check"] = number(cas.Format), number(int64(r.Check()))
	words("version", version)
	words("key_scope", r.Key.Scope)
	words("key_operation", r.Key.Operation)
	words("key_id", r.Key.ID)
	words("status", r.Status.String())
	it["attempt"] = number(r.Attempt)
	bytes("owner", r.Owner[:])
	if r.Cause != [16]byte{} {
		bytes("cause", r.Cause[:])
	}
	bytes("fingerprint", r.Fingerprint)
	words("reason", r.Reason)
	at("created", r.Created)
	at("updated", r.Updated)
	at("lease", r.Lease)
	at("keep_outcome", r.KeepOutcome)
	at("keep_key", r.KeepKey)
	flag("firm", r.Firm)
	if r.Status == once.Done {
		bytes("outcome", r.Outcome.Body)
		words("content_type", r.Outcome.ContentType)
		flag("rejected", r.Outcome.Rejected)
		flag("omitted", r.Outcome.Omitted)
		it["sum"] = number(int64(r.Outcome.Sum))
	}
	if r.Open() {
		it[o.Index] = text(o.shard(shardOf(id)))
	}
	if at, ok := r.Expires(); ok {
		it[o.Expiry] = expiry(at)
	}
	return it
}

// expiry is a time of deletion, in whole seconds, and never early.
func expiry(at cas.Instant) types.AttributeValue { return number(int64(at+999_999) / 1_000_000) }

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

var statuses = map[string]once.Status{}

func init() {
	for _, is := range []once.Status{once.Absent, once.Running, once.Unknown, once.Parked, once.Done} {
		statuses[is.String()] = is
	}
}

// decode returns the row of an item. A damaged one is [once.ErrCorrupt].
func (o *Options) decode(it item) (cas.Stored, error) {
	d := &decoder{item: it}
	var is cas.Stored
	is.Version = d.text("version")
	is.Key = once.Key{Scope: d.text("key_scope"), Operation: d.text("key_operation"), ID: d.text("key_id")}
	status, known := statuses[d.text("status")]
	is.Status, is.Attempt = status, d.number("attempt")
	d.uuid("owner", &is.Owner)
	d.uuid("cause", &is.Cause)
	is.Fingerprint, is.Reason, is.Firm = d.bytes("fingerprint"), d.text("reason"), d.flag("firm")
	is.Created, is.Updated, is.Lease = d.time("created"), d.time("updated"), d.time("lease")
	is.KeepOutcome, is.KeepKey = d.time("keep_outcome"), d.time("keep_key")
	if status == once.Done {
		sum := d.number("sum")
		is.Outcome = once.Outcome{Body: d.bytes("outcome"), ContentType: d.text("content_type"), Rejected: d.flag("rejected"),
			Omitted: d.flag("omitted"), Sum: uint32(sum)}
		if is.Outcome.Body == nil {
			is.Outcome.Body = []byte{}
		}
		d.need("a sum", it["sum"] != nil && sum == int64(is.Outcome.Sum))
		d.need("a keep_outcome", is.KeepOutcome != 0)
	}
	_, expires := is.Expires()
	d.need("a keep_key", is.KeepKey != 0 || !expires)
	d.need("a version", is.Version != "")
	d.need("a status", known)
	d.need("an attempt", is.Attempt > 0)
	d.need("a lease, and the times created and updated", is.Lease != 0 && is.Created != 0 && is.Updated != 0)
	check := d.number("check")
	d.need("a check of 32 bits", check == int64(uint32(check)))
	id := is.Key.UUID()
	key, _ := it[o.PartitionKey].(*types.AttributeValueMemberS)
	d.need("its own key", key != nil && key.Value == o.Prefix+hex.EncodeToString(id[:]))
	if d.err != nil {
		return cas.Stored{}, fmt.Errorf("%w: the item of %s %q in %s %w", once.ErrCorrupt, is.Key.Operation, is.Key.ID, o.Table, d.err)
	}
	if err := is.Verify(d.number("format"), uint32(check)); err != nil {
		return cas.Stored{}, err
	}
	return is, nil
}

// decoder reads attributes, and keeps the first error. An absent attribute is
// the zero value.
type decoder struct {
	item item
	err  error
}

func (d *decoder) need(what string, has bool) {
	if !has && d.err == nil {
		d.err = fmt.Errorf("does not have %s", what)
	}
}

func (d *decoder) text(name string) string {
	value, is := d.item[name].(*types.AttributeValueMemberS)
	if !is {
		d.need("a string in "+name, d.item[name] == nil)
		return ""
	}
	return value.Value
}

func (d *decoder) bytes(name string) []byte {
	value, is := d.item[name].(*types.AttributeValueMemberB)
	if !is {
		d.need("bytes in "+name, d.item[name] == nil)
		return nil
	}
	return value.Value
}

func (d *decoder) flag(name string) bool {
	value, is := d.item[name].(*types.AttributeValueMemberBOOL)
	if !is {
		d.need("a boolean in "+name, d.item[name] == nil)
		return false
	}
	return value.Value
}

func (d *decoder) number(name string) int64 {
	value, is := d.item[name].(*types.AttributeValueMemberN)
	if !is {
		d.need("a number in "+name, d.item[name] == nil)
		return 0
	}
	n, err := strconv.ParseInt(value.Value, 10, 64)
	d.need("a number in "+name, err == nil)
	return n
}

func (d *decoder) time(name string) cas.Instant {
	s := d.text(name)
	if s == "" {
		return 0
	}
	t, err := time.Parse(timeLayout, s)
	d.need("a time in "+name, err == nil)
	return cas.Instant(t.UnixMicro())
}

func (d *decoder) uuid(name string, id *[16]byte) {
	b := d.bytes(name)
	d.need("16 bytes in "+name, len(b) == 0 || len(b) == len(id))
	copy(id[:], b)
}

// maxItem is how large an item may be, and maxTransaction all of a transaction.
const maxItem, maxTransaction = 400 << 10, 4 << 20

// size returns how large an item is for these limits, or a little more.
func size(it item) (n int) {
	for name, value := range it {
		n += len(name) + sizeOf(value)
	}
	return n
}

func sizeOf(value types.AttributeValue) (n int) {
	const each = 3 // of a list or a map, which cost 3 and 1 for each element
	switch v := value.(type) {
	case *types.AttributeValueMemberS:
		return len(v.Value)
	case *types.AttributeValueMemberB:
		return len(v.Value)
	case *types.AttributeValueMemberN:
		return len(v.Value) + 1
	case *types.AttributeValueMemberSS:
		for _, s := range v.Value {
			n += len(s)
		}
	case *types.AttributeValueMemberNS:
		for _, s := range v.Value {
			n += len(s) + 1
		}
	case *types.AttributeValueMemberBS:
		for _, b := range v.Value {
			n += len(b)
		}
	case *types.AttributeValueMemberL:
		n = each
		for _, e := range v.Value {
			n += 1 + sizeOf(e)
		}
	case *types.AttributeValueMemberM:
		n = each
		for name, e := range v.Value {
			n += 1 + len(name) + sizeOf(e)
		}
	default: // a boolean or null
		return 1
	}
	return n
}
