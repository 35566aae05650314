// Package dynamofake imitates DynamoDB over HTTP, in memory, as far as this
// repository uses it: items and their conditions, transactions and their tokens,
// indexes that lag, streams, deletion by time, throttling, and the Date of responses.
//
// Its writes are atomic one after another, so the conflicts of transactions in
// flight occur only on demand. Signatures and permissions are not checked.
// Expressions it does not know are refused.
package dynamofake

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is a fake. The zero value has no tables. Its fields are set before it
// serves.
type Server struct {
	// Clock is the time of the service. Default: time.Now.
	Clock func() time.Time

	// Lag is how long indexes, and reads that are not consistent, do not show a write.
	Lag time.Duration

	mu       sync.Mutex
	tables   map[string]*table
	tokens   map[string]token
	refusals []string
	held     int
	hides    func(key string) bool
	requests map[string]int
}

type table struct {
	description map[string]any
	keys        []string            // the partition key, and the sort key if there is one
	indexes     map[string][]string // their keys
	expiry      string
	items       view
	shown       view // what lags
	lagging     []change
	events      []event // of the stream
	shards      []int   // where those of the stream begin; nil: there is no stream
}

// view has items by their IDs, and by the partitions of the table, whose index
// has no name, and of its indexes.
type view struct {
	byID  map[string]item
	parts map[part]map[string]item
}

type part struct{ index, key string }

func newView() view {
	return view{byID: make(map[string]item), parts: make(map[part]map[string]item)}
}

// put replaces an item. Nil removes it.
func (t *table) put(v view, id string, is item) {
	was := v.byID[id]
	for index, keys := range t.allKeys() {
		if key := was[keys[0]]; key != nil {
			delete(v.parts[part{index, key.text()}], id)
		}
		if key := is[keys[0]]; key != nil {
			in := part{index, key.text()}
			if v.parts[in] == nil {
				v.parts[in] = make(map[string]item)
			}
			v.parts[in][id] = is
		}
	}
	if v.byID[id] = is; is == nil {
		delete(v.byID, id)
	}
}

// allKeys returns the keys of the table and of its indexes.
func (t *table) allKeys() iter.Seq2[string, []string] {
	return func(yield func(string, []string) bool) {
		if !yield("", t.keys) {
			return
		}
		for index, keys := range t.indexes {
			if !yield(index, keys) {
				return
			}
		}
	}
}

// change is a write that is not shown yet.
type change struct {
	at time.Time
	id string
	is item
}

// token is a transaction that was applied.
type token struct {
	body string
	at   time.Time
}

// Refuse makes the next writes fail, each with one of these error codes, such as
// ProvisionedThroughputExceededException or TransactionConflictException. A
// transaction is canceled for the corresponding reason.
func (s *Server) Refuse(codes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, codes...)
}

// Requests returns how many requests for each operation were received.
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

// Expire deletes what is past its time, as the service does some time.
func (s *Server) Expire() (deleted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := value{"N": fmt.Sprint(s.now().Unix())}
	for _, t := range s.tables {
		for id, it := range t.items.byID {
			if at := it[t.expiry]; at.kind() == "N" && at.rat().Cmp(now.rat()) < 0 {
				t.set(id, nil, s.now())
				deleted++
			}
		}
	}
	return deleted
}

// Edit calls f with each item of a table, to damage it.
func (s *Server) Edit(name string, f func(it map[string]map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[name]
	t.show(s.now(), 0)
	for id, it := range t.items.byID {
		plain := make(map[string]map[string]any)
		for name, v := range it {
			plain[name] = v
		}
		f(plain)
		edited := make(item)
		for name, v := range plain {
			edited[name] = v
		}
		t.put(t.items, id, edited)
		t.put(t.shown, id, edited)
	}
}

func (s *Server) now() time.Time {
	if s.Clock == nil {
		return time.Now()
	}
	return s.Clock()
}

// problem is an error of the service.
type problem struct {
	code, message string
	more          map[string]any
}

func (p *problem) Error() string { return p.code + ": " + p.message }

func invalid(format string, args ...any) *problem {
	return &problem{code: "ValidationException", message: fmt.Sprintf(format, args...)}
}

// request has the fields of all requests that are known.
type request struct {
	TableName string
	write
	ConsistentRead            bool
	IndexName                 string
	KeyConditionExpression    string
	ScanIndexForward          *bool
	Limit                     int
	ExclusiveStartKey         item
	ClientRequestToken        string
	TransactItems             []map[string]*write
	AttributeDefinitions      []map[string]any
	KeySchema                 []keyPart
	GlobalSecondaryIndexes    []indexRequest
	BillingMode               string
	TimeToLiveSpecification   struct{ AttributeName string }
	ProjectionExpression      string
	StreamSpecification       map[string]any
	DeletionProtectionEnabled bool
	Tags                      []any
}

type keyPart struct{ AttributeName, KeyType string }

type indexRequest struct {
	IndexName  string
	KeySchema  []keyPart
	Projection map[string]any
}

// write is a write of one item, alone or in a transaction.
type write struct {
	TableName                           string
	Item                                item
	Key                                 item
	UpdateExpression                    string
	ConditionExpression                 string
	ExpressionAttributeNames            map[string]string
	ExpressionAttributeValues           map[string]value
	ReturnValuesOnConditionCheckFailure string
	ReturnValues                        string
}

// ServeHTTP answers a request of the JSON protocol.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	status, out := s.answer(operation, body)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
	w.Header().Set("x-amzn-RequestId", rand.Text())
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // a fault of this package
	}
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(text)), 10))
	w.WriteHeader(status)
	_, _ = w.Write(text) // or the client is gone
}

func (s *Server) answer(operation string, body []byte) (status int, out any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests == nil {
		s.requests, s.tables, s.tokens = make(map[string]int), make(map[string]*table), make(map[string]token)
	}
	s.requests[operation]++
	out, err := s.do(operation, body)
	if err == nil {
		return http.StatusOK, out
	}
	response := map[string]any{"__type": "com.amazonaws.dynamodb.v20120810#" + err.code, "message": err.message}
	maps.Copy(response, err.more)
	return http.StatusBadRequest, response
}

func (s *Server) do(operation string, body []byte) (any, *problem) {
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, &problem{code: "SerializationException", message: err.Error()}
	}
	if operation == "TransactWriteItems" {
		return s.transact(&r, string(body))
	}
	switch operation {
	case "DescribeStream", "GetShardIterator", "GetRecords":
		return s.readStream(operation, body)
	}
	if operation == "CreateTable" {
		return s.createTable(&r, body)
	}
	t := s.tables[r.TableName]
	if t == nil {
		return nil, &problem{code: "ResourceNotFoundException", message: "Requested resource not found: Table: " + r.TableName + " not found"}
	}
	switch operation {
	case "DescribeTable":
		return map[string]any{"Table": t.description}, nil
	case "UpdateTimeToLive":
		t.expiry = r.TimeToLiveSpecification.AttributeName
		return map[string]any{}, nil
	case "DescribeTimeToLive":
		status := "DISABLED"
		if t.expiry != "" {
			status = "ENABLED"
		}
		return map[string]any{"TimeToLiveDescription": map[string]any{"TimeToLiveStatus": status, "AttributeName": t.expiry}}, nil
	case "DescribeContinuousBackups":
		return map[string]any{"ContinuousBackupsDescription": map[string]any{"ContinuousBackupsStatus": "ENABLED",
			"PointInTimeRecoveryDescription": map[string]any{"PointInTimeRecoveryStatus": "DISABLED"}}}, nil
	case "GetItem":
		id, err := t.id(r.Key)
		if err != nil {
			return nil, err
		}
		items := t.items
		if !r.ConsistentRead {
			t.show(s.now().Add(-s.Lag), s.held)
			items = t.shown
		}
		if it := items.byID[id]; it != nil {
			return map[string]any{"Item": it}, nil
		}
		return map[string]any{}, nil
	case "Scan": // for tests that look at everything, in one page
		return map[string]any{"Items": slices.Collect(maps.Values(t.items.byID)), "Count": len(t.items.byID)}, nil
	case "Query":
		t.show(s.now().Add(-s.Lag), s.held)
		return t.query(&r, s.hides)
	case "PutItem", "UpdateItem", "DeleteItem":
		return s.writeAlone(&r, operation)
	}
	return nil, &problem{code: "UnknownOperationException", message: operation}
}

func (s *Server) createTable(r *request, body []byte) (any, *problem) {
	if s.tables[r.TableName] != nil {
		return nil, &problem{code: "ResourceInUseException", message: "Table already exists: " + r.TableName}
	}
	t := &table{items: newView(), shown: newView(), indexes: make(map[string][]string)}
	_ = json.Unmarshal(body, &t.description)
	t.description["TableStatus"] = "ACTIVE"
	for _, part := range r.KeySchema {
		t.keys = append(t.keys, part.AttributeName)
	}
	for _, index := range r.GlobalSecondaryIndexes {
		for _, part := range index.KeySchema {
			t.indexes[index.IndexName] = append(t.indexes[index.IndexName], part.AttributeName)
		}
	}
	if on, _ := r.StreamSpecification["StreamEnabled"].(bool); on {
		t.shards = []int{0}
		t.description["LatestStreamArn"] = fmt.Sprintf(streamOf, r.TableName)
	}
	s.tables[r.TableName] = t
	return map[string]any{"TableDescription": t.description}, nil
}

// id returns the keys of an item as one string.
func (t *table) id(it item) (string, *problem) {
	var parts []string
	for _, name := range t.keys {
		if it[name].text() == "" {
			return "", invalid("One or more parameter values were invalid: Missing the key %s in the item", name)
		}
		parts = append(parts, it[name].kind()+it[name].text())
	}
	return strings.Join(parts, "\x00"), nil
}

func (t *table) set(id string, is item, now time.Time) {
	switch was := t.items.byID[id]; {
	case is == nil && was != nil:
		t.stream("REMOVE", was)
	case is != nil && was == nil:
		t.stream("INSERT", is)
	case is != nil:
		t.stream("MODIFY", is)
	}
	t.put(t.items, id, is)
	t.lagging = append(t.lagging, change{at: now, id: id, is: is})
}

// refused returns the next refusal.
func (s *Server) refused() (code string) {
	if len(s.refusals) > 0 {
		code, s.refusals = s.refusals[0], s.refusals[1:]
	}
	return code
}

func (s *Server) writeAlone(r *request, operation string) (any, *problem) {
	if code := s.refused(); code != "" {
		return nil, &problem{code: code, message: "on demand"}
	}
	r.write.TableName = r.TableName
	kind := strings.TrimSuffix(operation, "Item")
	id, is, was, failed := s.prepare(kind, &r.write)
	if failed != nil {
		if failed.code == "ConditionalCheckFailed" {
			failed.code = "ConditionalCheckFailedException"
		}
		return nil, failed
	}
	s.tables[r.TableName].set(id, is, s.now())
	if r.ReturnValues == "ALL_OLD" && was != nil {
		return map[string]any{"Attributes": was}, nil
	}
	return map[string]any{}, nil
}

// prepare returns the item that a write would write, if its condition holds.
func (s *Server) prepare(kind string, w *write) (id string, is, was item, failed *problem) {
	t := s.tables[w.TableName]
	if t == nil {
		return "", nil, nil, &problem{code: "ResourceNotFoundException", message: w.TableName}
	}
	key := w.Key
	if kind == "Put" {
		key = w.Item
	}
	if id, failed = t.id(key); failed != nil {
		return id, nil, nil, failed
	}
	was = t.items.byID[id]
	condition := newExpression(w.ConditionExpression, w.ExpressionAttributeNames, w.ExpressionAttributeValues)
	holds, err := true, error(nil)
	if w.ConditionExpression != "" {
		holds, err = condition.holds(was)
	}
	update := newExpression(w.UpdateExpression, w.ExpressionAttributeNames, w.ExpressionAttributeValues)
	update.used = condition.used
	if err == nil && holds {
		switch kind {
		case "Put":
			is = w.Item
		case "Update":
			if is = maps.Clone(was); is == nil {
				is = maps.Clone(w.Key)
			}
			err = update.update(is)
		case "ConditionCheck":
			is = was
		}
		if err == nil {
			err = update.unused()
		}
	}
	for name, v := range is {
		if err == nil {
			err = v.check()
		}
		if err != nil {
			err = fmt.Errorf("%w (%s)", err, name)
			break
		}
	}
	switch {
	case err != nil:
		return id, nil, was, invalid("%v", err)
	case !holds:
		failed = &problem{code: "ConditionalCheckFailed", message: "The conditional request failed"}
		if w.ReturnValuesOnConditionCheckFailure == "ALL_OLD" && was != nil {
			failed.more = map[string]any{"Item": was}
		}
		return id, nil, was, failed
	case size(is) > 400<<10:
		return id, nil, was, invalid("Item size has exceeded the maximum allowed size")
	}
	for _, keys := range t.indexes {
		for _, name := range keys {
			if v, has := is[name]; has && v.kind() != "S" {
				return id, nil, was, invalid("One or more parameter values were invalid: Type mismatch for Index Key %s", name)
			}
		}
	}
	return id, is, was, nil
}

// transact applies all writes or none.
func (s *Server) transact(r *request, body string) (any, *problem) {
	now := s.now()
	if r.ClientRequestToken != "" {
		if before, known := s.tokens[r.ClientRequestToken]; known && now.Sub(before.at) < 10*time.Minute {
			if before.body != body {
				return nil, &problem{code: "IdempotentParameterMismatchException", message: "the token was used for another request"}
			}
			return map[string]any{}, nil
		}
	}
	if len(r.TransactItems) > 100 || len(r.TransactItems) == 0 {
		return nil, invalid("Member must have length less than or equal to 100, and at least 1: %d", len(r.TransactItems))
	}
	type prepared struct {
		table *table
		id    string
		is    item
	}
	var all []prepared
	var reasons []map[string]any
	var codes []string
	seen := make(map[string]bool)
	total, canceled := 0, false
	refusal := s.refused()
	for _, one := range r.TransactItems {
		if len(one) != 1 {
			return nil, invalid("TransactItems can only contain one of Check, Put, Update or Delete")
		}
		for kind, w := range one {
			id, is, _, failed := s.prepare(kind, w)
			if failed != nil && failed.code != "ConditionalCheckFailed" {
				return nil, failed
			}
			if key := w.TableName + "\x00" + id; seen[key] {
				return nil, invalid("Transaction request cannot include multiple operations on one item")
			} else {
				seen[key] = true
			}
			reason := map[string]any{"Code": "None"}
			if failed == nil && refusal != "" {
				failed, refusal = &problem{code: reasonOf(refusal), message: "on demand"}, ""
			}
			if failed != nil {
				reason, canceled = map[string]any{"Code": failed.code, "Message": failed.message}, true
				maps.Copy(reason, failed.more)
			}
			reasons, codes = append(reasons, reason), append(codes, reason["Code"].(string))
			total += size(is)
			all = append(all, prepared{s.tables[w.TableName], id, is})
		}
	}
	if total > 4<<20 {
		return nil, invalid("Transaction size has exceeded the maximum allowed size")
	}
	if canceled {
		return nil, &problem{code: "TransactionCanceledException", more: map[string]any{"CancellationReasons": reasons},
			message: "Transaction cancelled, please refer cancellation reasons for specific reasons [" + strings.Join(codes, ", ") + "]"}
	}
	for _, p := range all {
		if p.is != nil || p.table.items.byID[p.id] != nil {
			p.table.set(p.id, p.is, now)
		}
	}
	if r.ClientRequestToken != "" {
		s.tokens[r.ClientRequestToken] = token{body, now}
	}
	return map[string]any{}, nil
}

// reasonOf returns the reason for canceling a transaction that corresponds to an
// error code.
func reasonOf(code string) string {
	if code == "ThrottlingException" {
		return "ThrottlingError"
	}
	return strings.TrimSuffix(code, "Exception")
}

// query reads a table or an index, which lacks what hides reports.
func (t *table) query(r *request, hides func(key string) bool) (any, *problem) {
	items, keys := t.items, t.keys
	if r.IndexName != "" {
		if keys = t.indexes[r.IndexName]; keys == nil {
			return nil, invalid("The table does not have the specified index: %s", r.IndexName)
		}
		if r.ConsistentRead {
			return nil, invalid("Consistent reads are not supported on global secondary indexes")
		}
		items = t.shown
	}
	condition := newExpression(r.KeyConditionExpression, r.ExpressionAttributeNames, r.ExpressionAttributeValues)
	asked := make(map[string]bool) // one of them is the partition key
	for _, value := range r.ExpressionAttributeValues {
		asked[value.text()] = true
	}
	var found []item
	for key := range asked {
		for _, it := range items.parts[part{r.IndexName, key}] {
			if slices.ContainsFunc(keys, func(name string) bool { return it[name] == nil }) {
				continue
			}
			if r.IndexName != "" && hides != nil && hides(it[t.keys[0]].text()) {
				continue
			}
			holds, err := condition.holds(it)
			if err != nil {
				return nil, invalid("%v", err)
			}
			if holds {
				found = append(found, it)
			}
		}
	}
	last := keys[len(keys)-1]
	slices.SortFunc(found, func(a, b item) int { return cmp.Compare(a[last].text(), b[last].text()) })
	if r.ScanIndexForward != nil && !*r.ScanIndexForward {
		slices.Reverse(found)
	}
	if r.ExclusiveStartKey != nil {
		after := slices.IndexFunc(found, func(it item) bool { return it[last].text() > r.ExclusiveStartKey[last].text() })
		if after < 0 {
			after = len(found)
		}
		found = found[after:]
	}
	out := map[string]any{}
	bytes := 0
	for n, it := range found {
		if bytes += size(it); n == r.Limit && r.Limit > 0 || bytes > 1<<20 && n > 0 {
			key := make(item)
			for _, name := range append(slices.Clone(t.keys), keys...) {
				key[name] = found[n-1][name]
			}
			found, out["LastEvaluatedKey"] = found[:n], key
			break
		}
	}
	out["Items"], out["Count"] = append([]item{}, found...), len(found)
	return out, nil
}

// show shows what was written before, except the last writes that are held.
func (t *table) show(before time.Time, held int) {
	for len(t.lagging) > held && !t.lagging[0].at.After(before) {
		c := t.lagging[0]
		t.lagging = t.lagging[1:]
		t.put(t.shown, c.id, c.is)
	}
}
