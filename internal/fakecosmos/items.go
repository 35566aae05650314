package fakecosmos

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	maxItem      = 2 << 20 // bytes of an item, and of a request
	maxBatch     = 100
	maxTTL       = math.MaxInt32
	badCharsOfID = `/\?#`
)

// container keeps items in physical partitions.
type container struct {
	properties map[string]any
	key        string // the property that is the partition key
	ttl        *int
	partitions []*partition // in the order of their hashes
	next       int          // id of the next partition
	splits     int
}

func newContainer(properties map[string]any, key string, ttl *int, partitions int) *container {
	c := &container{properties: properties, key: key, ttl: ttl}
	for i := range partitions {
		c.partitions = append(c.partitions, c.newPartition(i*hashes/partitions, (i+1)*hashes/partitions))
	}
	return c
}

func (c *container) newPartition(from, to int) *partition {
	p := &partition{id: c.next, from: from, to: to, items: make(map[string]*item), indexes: make(map[string]*index)}
	c.next++
	return p
}

// hashes is the number of hashes of partition keys. They are below FF in the text
// of a bound.
const hashes = 0xff00

func hashOf(value string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(value))
	return int(h.Sum32() % hashes)
}

// bound returns a hash as requests and responses have it.
func bound(hash int) string {
	switch hash {
	case 0:
		return ""
	case hashes:
		return "FF"
	}
	return fmt.Sprintf("%04X", hash)
}

// of returns the partition of a key value, which is JSON.
func (c *container) of(value string) *partition { return c.at(hashOf(value)) }

// at returns the partition of a hash.
func (c *container) at(hash int) *partition {
	i := slices.IndexFunc(c.partitions, func(p *partition) bool { return hash < p.to })
	return c.partitions[i]
}

// byID returns a partition, or nil.
func (c *container) byID(id int) *partition {
	i := slices.IndexFunc(c.partitions, func(p *partition) bool { return p.id == id })
	if i < 0 {
		return nil
	}
	return c.partitions[i]
}

// split replaces each partition by two, which continue its change feed.
func (c *container) split() {
	c.splits++
	var halves []*partition
	for _, p := range c.partitions {
		middle := (p.from + p.to) / 2
		if middle == p.from {
			halves = append(halves, p)
			continue
		}
		for _, half := range []*partition{c.newPartition(p.from, middle), c.newPartition(middle, p.to)} {
			half.lsn, half.secondary, half.parents = p.lsn, p.secondary, append(slices.Clone(p.parents), p.id)
			for _, it := range p.order {
				if half.from <= it.hash && it.hash < half.to {
					half.items[it.name] = it
					half.order = append(half.order, it)
				}
			}
			for _, name := range p.behind {
				if half.items[name] != nil {
					half.behind = append(half.behind, name)
				}
			}
			halves = append(halves, half)
		}
	}
	c.partitions = halves
}

// partition is a physical partition: a primary replica, and a secondary that may
// be behind.
type partition struct {
	id        int
	parents   []int // that were split
	from, to  int   // hashes of its partition keys, the last of which is not its own
	lsn       int64 // of the primary
	secondary int64
	items     map[string]*item  // by name
	order     []*item           // by hash and name
	behind    []string          // names of the items that the secondary does not have yet
	indexes   map[string]*index // by property, as far as queries asked for them
}

// add adds an item.
func (p *partition) add(it *item) {
	p.items[it.name] = it
	i, _ := slices.BinarySearchFunc(p.order, place{it.hash, it.name}, comparePlace)
	p.order = slices.Insert(p.order, i, it)
}

// remove removes an item.
func (p *partition) remove(it *item) {
	delete(p.items, it.name)
	for _, x := range p.indexes {
		x.drop(it)
	}
	if i, found := slices.BinarySearchFunc(p.order, place{it.hash, it.name}, comparePlace); found {
		p.order = slices.Delete(p.order, i, i+1)
	}
}

// keep leaves an item some of its versions.
func (p *partition) keep(it *item, some []version) {
	for _, x := range p.indexes {
		x.drop(it)
	}
	it.versions = some
	for _, x := range p.indexes {
		for _, v := range some {
			x.add(it, v)
		}
	}
}

// place is where an item is in the order of a query across partitions.
type place struct {
	hash int
	name string
}

func comparePlace(it *item, at place) int {
	return cmp.Or(cmp.Compare(it.hash, at.hash), cmp.Compare(it.name, at.name))
}

// replicate brings the secondary up to date, which no longer needs old versions.
func (p *partition) replicate() {
	if p.secondary == p.lsn {
		return
	}
	p.secondary = p.lsn
	for _, name := range p.behind {
		it := p.items[name]
		if it == nil {
			continue
		}
		p.keep(it, it.versions[len(it.versions)-1:])
		if it.versions[0].body == nil {
			p.remove(it)
		}
	}
	p.behind = nil
}

// undo removes the versions after lsn.
func (p *partition) undo(lsn int64) {
	for p.lsn > lsn {
		name := p.behind[len(p.behind)-1]
		p.behind = p.behind[:len(p.behind)-1]
		it := p.items[name]
		if p.keep(it, it.versions[:len(it.versions)-1]); len(it.versions) == 0 {
			p.remove(it)
		}
		p.lsn--
	}
}

// item is an item with its versions, the newest last.
type item struct {
	key      string // of its partition, as JSON
	hash     int    // of key
	name     string // key and id
	versions []version
}

type version struct {
	lsn     int64
	etag    string
	body    map[string]any // nil: deleted
	text    []byte
	expires time.Time // zero: never
}

// at returns the version of an item that a replica has, if there is one.
func (p *partition) at(name string, lsn int64, now time.Time) (version, bool) {
	it := p.items[name]
	if it == nil {
		return version{}, false
	}
	return it.at(lsn, now)
}

func (it *item) at(lsn int64, now time.Time) (version, bool) {
	for _, v := range slices.Backward(it.versions) {
		if v.lsn <= lsn {
			return v, v.body != nil && (v.expires.IsZero() || now.Before(v.expires))
		}
	}
	return version{}, false
}

// after returns the items that a replica has and that come after a place. It may
// leave out those that are not within the limits.
func (p *partition) after(at place, l *limits, lsn int64, now time.Time) iter.Seq2[*item, version] {
	items := p.order
	if l != nil {
		items = p.between(*l)
	}
	first, found := slices.BinarySearchFunc(items, at, comparePlace)
	if found {
		first++
	}
	return func(yield func(*item, version) bool) {
		for _, it := range items[first:] {
			if v, ok := it.at(lsn, now); ok && !yield(it, v) {
				return
			}
		}
	}
}

func nameOf(key, id string) string { return key + "\x00" + id }

// itemCall is a request for items.
type itemCall struct {
	server    *Server
	container *container
	header    http.Header
	kind      string
	id        string
	body      []byte
}

// writes reports whether the primary replica answers.
func (c *itemCall) writes() bool { return c.kind != "Read" && c.kind != "Query" && c.kind != "Feed" }

// partitionKey returns the value of the partition key as JSON, or "" if the
// request has none.
func (c *itemCall) partitionKey() (string, error) {
	text := c.header.Get("x-ms-documentdb-partitionkey")
	if text == "" {
		return "", nil
	}
	var values []any
	if err := json.Unmarshal([]byte(text), &values); err != nil || len(values) > 1 {
		return "", fmt.Errorf("the partition key %s is not one value", text)
	}
	if len(values) == 0 {
		return "", nil
	}
	value, err := json.Marshal(values[0])
	return string(value), err
}

func (c *itemCall) apply() reply {
	key, err := c.partitionKey()
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	switch c.kind {
	case "Query":
		return c.query(key)
	case "Feed":
		return c.feed()
	}
	if key == "" {
		return refuse(http.StatusBadRequest, "there is no partition key")
	}
	if len(c.body) > maxItem {
		return refuse(http.StatusRequestEntityTooLarge, "the request has %d bytes", len(c.body))
	}
	p := c.container.of(key)
	token := func(rep reply) reply {
		if rep.headers == nil {
			rep.headers = make(map[string]string)
		}
		rep.headers["x-ms-session-token"] = fmt.Sprintf("%d:-1#%d", p.id, p.lsn)
		return rep
	}
	switch c.kind {
	case "Batch":
		return token(c.batch(p, key))
	case "Read":
		v, ok := p.at(nameOf(key, c.id), c.replica(p), c.server.now())
		if !ok {
			return token(refuse(http.StatusNotFound, "there is no such item"))
		}
		return token(reply{status: http.StatusOK, etag: v.etag, body: v.text})
	}
	rep := c.one(p, operation{OperationType: c.kind, ID: c.id, IfMatch: c.header.Get("If-Match"), ResourceBody: c.body}, key)
	if rep.status < 300 && c.header.Get("Prefer") == "return=minimal" {
		rep.body = nil
	}
	return token(rep)
}

// replica returns what the replica that answers a read has.
func (c *itemCall) replica(p *partition) int64 {
	switch c.server.level {
	case Strong, Bounded:
		return p.lsn
	case Session:
		for _, token := range strings.Split(c.header.Get("x-ms-session-token"), ",") {
			var id int
			var lsn int64
			if n, _ := fmt.Sscanf(token, "%d:-1#%d", &id, &lsn); n == 2 && (id == p.id || slices.Contains(p.parents, id)) {
				return min(max(p.secondary, lsn), p.lsn)
			}
		}
	}
	return p.secondary
}

// operation is a write of an item, or a read in a batch.
type operation struct {
	OperationType string
	ID            string
	IfMatch       string
	ResourceBody  json.RawMessage
}

// one applies an operation at the primary replica.
func (c *itemCall) one(p *partition, op operation, key string) reply {
	var body map[string]any
	if op.OperationType != "Delete" && op.OperationType != "Read" {
		decode := json.NewDecoder(bytes.NewReader(op.ResourceBody))
		decode.UseNumber()
		if err := decode.Decode(&body); err != nil {
			return refuse(http.StatusBadRequest, "the item is not JSON: %v", err)
		}
	}
	if op.OperationType == "Create" || op.OperationType == "Upsert" {
		op.ID, _ = body["id"].(string)
	}
	if op.ID == "" || strings.ContainsAny(op.ID, badCharsOfID) || len(op.ID) > 1023 {
		return refuse(http.StatusBadRequest, "%q is not an id", op.ID)
	}
	now := c.server.now()
	is, exists := p.at(nameOf(key, op.ID), p.lsn, now)
	switch {
	case op.OperationType == "Create" && exists:
		return refuse(http.StatusConflict, "an item with this id exists")
	case !exists && op.OperationType != "Create" && op.OperationType != "Upsert":
		return refuse(http.StatusNotFound, "there is no such item")
	case op.OperationType == "Read":
		return reply{status: http.StatusOK, etag: is.etag, body: is.text}
	case exists && op.IfMatch != "" && op.IfMatch != "*" && op.IfMatch != is.etag:
		return refuse(http.StatusPreconditionFailed, "the item has another entity tag")
	}
	switch op.OperationType {
	case "Delete":
		c.write(p, key, op.ID, version{})
		return reply{status: http.StatusNoContent}
	case "Patch":
		patched, rep := patch(is.body, body)
		if patched == nil {
			return rep
		}
		body = patched
	}
	if value, err := json.Marshal(body[c.container.key]); err != nil || string(value) != key || body["id"] != op.ID {
		return refuse(http.StatusBadRequest, "the item has another id or partition key than the request")
	}
	v := version{body: body, etag: fmt.Sprintf("%q", strings.ToLower(rand.Text()))}
	ttl, err := c.container.timeToLive(body)
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	if ttl > 0 {
		v.expires = now.Truncate(time.Second).Add(time.Duration(ttl) * time.Second)
	}
	body["_etag"], body["_ts"], body["_rid"], body["_self"], body["_lsn"] = v.etag, now.Unix(), op.ID, op.ID, p.lsn+1
	if v.text, err = json.Marshal(body); err != nil || len(v.text) > maxItem {
		return refuse(http.StatusRequestEntityTooLarge, "the item has %d bytes", len(v.text))
	}
	c.write(p, key, op.ID, v)
	status := http.StatusOK
	if !exists {
		status = http.StatusCreated
	}
	return reply{status: status, etag: v.etag, body: v.text}
}

func (c *itemCall) write(p *partition, key, id string, v version) {
	p.lsn++
	v.lsn = p.lsn
	name := nameOf(key, id)
	if p.items[name] == nil {
		p.add(&item{key: key, hash: hashOf(key), name: name})
	}
	it := p.items[name]
	it.versions = append(it.versions, v)
	for _, x := range p.indexes {
		x.add(it, v)
	}
	p.behind = append(p.behind, name)
}

// timeToLive returns after how many seconds an item expires, or 0.
func (c *container) timeToLive(body map[string]any) (int, error) {
	own, has := body["ttl"]
	ttl := -1
	if has {
		n, ok := own.(json.Number)
		seconds, err := n.Int64()
		if !ok || err != nil || seconds == 0 || seconds < -1 || seconds > maxTTL {
			return 0, fmt.Errorf("%v is not a time to live", own)
		}
		ttl = int(seconds)
	}
	switch {
	case c.ttl == nil:
		return 0, nil
	case !has:
		ttl = *c.ttl
	}
	return max(ttl, 0), nil
}

// patch returns the item after a patch, or the reply that refuses it.
func patch(is, request map[string]any) (map[string]any, reply) {
	if condition, ok := request["condition"].(string); ok {
		_, where, _ := strings.Cut(condition, " where ")
		holds, err := newQuery("SELECT * FROM c WHERE "+where, nil)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "%v", err)
		}
		if !holds.selects(is) {
			return nil, refuse(http.StatusPreconditionFailed, "the condition does not hold")
		}
	}
	body := maps.Clone(is)
	operations, _ := request["operations"].([]any)
	for _, o := range operations {
		op, _ := o.(map[string]any)
		path, _ := op["path"].(string)
		name := strings.TrimPrefix(path, "/")
		if name == "" || strings.Contains(name, "/") {
			return nil, refuse(http.StatusBadRequest, "fakecosmos patches only properties of the first level")
		}
		switch op["op"] {
		case "set", "add", "replace":
			body[name] = op["value"]
		case "remove":
			delete(body, name)
		case "incr":
			sum, ok := number(body[name])
			by, ok2 := number(op["value"])
			if !ok || !ok2 {
				return nil, refuse(http.StatusBadRequest, "%s is not a number", path)
			}
			body[name] = json.Number(fmt.Sprint(sum + by))
		default:
			return nil, refuse(http.StatusBadRequest, "fakecosmos has no patch operation %v", op["op"])
		}
	}
	return body, reply{}
}

// batch applies operations as a whole or not at all.
func (c *itemCall) batch(p *partition, key string) reply {
	var ops []operation
	if err := json.Unmarshal(c.body, &ops); err != nil {
		return refuse(http.StatusBadRequest, "the batch is not JSON: %v", err)
	}
	if len(ops) == 0 || len(ops) > maxBatch {
		return refuse(http.StatusBadRequest, "the batch has %d operations", len(ops))
	}
	before := p.lsn
	results := make([]any, len(ops))
	status := http.StatusOK
	for i, op := range ops {
		rep := c.one(p, op, key)
		result := map[string]any{"statusCode": rep.status, "requestCharge": 1}
		if text, ok := rep.body.([]byte); ok {
			result["resourceBody"], result["eTag"] = json.RawMessage(text), rep.etag
		}
		results[i] = result
		if rep.status < 300 {
			continue
		}
		for j := range results {
			if j != i {
				results[j] = map[string]any{"statusCode": http.StatusFailedDependency, "requestCharge": 0}
			}
		}
		p.undo(before)
		status = http.StatusMultiStatus
		break
	}
	if c.header.Get("Prefer") == "return=minimal" {
		return reply{status: status}
	}
	return reply{status: status, body: results}
}

// ranges lists the physical partitions.
func (c *container) ranges(known string) reply {
	etag := fmt.Sprintf(`"%d"`, c.splits)
	if known == etag {
		return reply{status: http.StatusNotModified, etag: etag}
	}
	var all []any
	for _, p := range c.partitions {
		parents := []string{}
		for _, id := range p.parents {
			parents = append(parents, fmt.Sprint(id))
		}
		all = append(all, map[string]any{"id": fmt.Sprint(p.id), "_rid": fmt.Sprint(p.id), "parents": parents,
			"minInclusive": bound(p.from), "maxExclusive": bound(p.to)})
	}
	return reply{status: http.StatusOK, etag: etag,
		body: map[string]any{"_rid": c.properties["_rid"], "_count": len(all), "PartitionKeyRanges": all}}
}
