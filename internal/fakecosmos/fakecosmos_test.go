package fakecosmos_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/fakecosmos"
)

// service is a server with a container, and a client of its REST interface.
type service struct {
	*fakecosmos.Server
	t testing.TB
}

func start(t testing.TB, container string) *service {
	t.Helper()
	s := &service{fakecosmos.New(), t}
	t.Cleanup(s.Close)
	s.send("POST", "/dbs", `{"id":"d"}`).want(201)
	s.send("POST", "/dbs/d/colls", container).want(201)
	return s
}

const (
	keeps = `{"id":"c","partitionKey":{"paths":["/pk"]},"defaultTtl":-1}`
	items = "/dbs/d/colls/c/docs"
)

type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   map[string]any
	list   []any
	cut    bool
}

// send sends a request. Headers are pairs of names and values.
func (s *service) send(method, path, body string, headers ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{t: s.t, cut: true}
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	a := answer{t: s.t, status: got.StatusCode, header: got.Header}
	if len(text) > 0 {
		to := any(&a.body)
		if bytes.HasPrefix(text, []byte("[")) {
			to = &a.list
		}
		if err := json.Unmarshal(text, to); err != nil {
			s.t.Fatalf("%s: %v", text, err)
		}
	}
	return a
}

func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("the status is %d with %v, want %d", a.status, a.body, status)
	}
	return a
}

func (a answer) etag() string { return a.header.Get("etag") }

func (s *service) create(id string, more ...string) answer {
	s.t.Helper()
	return s.send("POST", items, item(id, more...), in("p")...)
}

func (s *service) read(id string, headers ...string) answer {
	s.t.Helper()
	return s.send("GET", items+"/"+id, "", append(in("p"), headers...)...)
}

// in is the header for a partition key.
func in(key string) []string {
	return []string{"x-ms-documentdb-partitionkey", fmt.Sprintf("[%q]", key)}
}

// item is an item in the partition p, with more properties as JSON.
func item(id string, more ...string) string {
	return fmt.Sprintf(`{"id":%q,"pk":"p"%s}`, id, strings.Join(append([]string{""}, more...), ","))
}

// "HTTP status codes for Azure Cosmos DB": 409 if the id is taken, 412 if the
// entity tag is another, 404 if there is no item.
func TestWritesAreConditional(t *testing.T) {
	s := start(t, keeps)
	first := s.create("1").want(201).etag()
	s.create("1").want(409)
	s.send("POST", items, `{"id":"1","pk":"q"}`, in("q")...).want(201) // ids are unique within a partition key
	second := s.send("PUT", items+"/1", item("1"), append(in("p"), "If-Match", first)...).want(200).etag()
	if first == second {
		t.Error("a write does not change the entity tag")
	}
	s.send("PUT", items+"/1", item("1"), append(in("p"), "If-Match", first)...).want(412)
	s.send("DELETE", items+"/1", "", append(in("p"), "If-Match", first)...).want(412)
	s.send("POST", items, item("1"), append(in("p"), "If-Match", first, "x-ms-documentdb-is-upsert", "True")...).want(412)
	if got := s.read("1").want(200); got.etag() != second || got.body["_etag"] != second {
		t.Errorf("the entity tag is %s and %v, want %s", got.etag(), got.body["_etag"], second)
	}
	s.send("DELETE", items+"/1", "", append(in("p"), "If-Match", second)...).want(204)
	s.read("1").want(404)
	s.send("PUT", items+"/1", item("1"), in("p")...).want(404)
	s.send("POST", items, item("1"), append(in("p"), "x-ms-documentdb-is-upsert", "True")...).want(201)
}

// "Azure Cosmos DB service quotas": 2 MB for an item, 1,023 bytes for an id.
func TestWhatIsInvalidIsRefused(t *testing.T) {
	s := start(t, keeps)
	s.create("1", `"x":"`+strings.Repeat("x", 2<<20)+`"`).want(413)
	s.create(strings.Repeat("i", 1024)).want(400)
	s.create("a/b").want(400)
	s.create("").want(400)
	s.send("POST", items, item("1"), in("q")...).want(400) // another partition key
	s.send("POST", items, item("1")).want(400)             // none
	for _, ttl := range []string{"0", "-2", `"1"`, "1.5", "2147483648"} {
		s.create("1", `"ttl":`+ttl).want(400)
	}
}

var batch = append(in("p"), "x-ms-cosmos-is-batch-request", "True")

// "Transactional batch operations": all or nothing, up to 100 operations, and 424
// for those that failed because of another.
func TestABatchIsAppliedAsAWhole(t *testing.T) {
	s := start(t, keeps)
	tag := s.create("1").want(201).etag()
	send := func(ops ...string) answer { return s.send("POST", items, "["+strings.Join(ops, ",")+"]", batch...) }
	create := func(id string) string { return `{"operationType":"Create","resourceBody":` + item(id) + `}` }
	got := send(create("2"), `{"operationType":"Delete","id":"1"}`, create("2"), create("3")).want(207)
	for i, want := range []float64{424, 424, 409, 424} {
		if is := got.list[i].(map[string]any)["statusCode"]; is != want {
			t.Errorf("operation %d has the status %v, want %v", i, is, want)
		}
	}
	if s.read("2").status != 404 || s.read("1").want(200).etag() != tag {
		t.Error("a part of the batch was applied")
	}
	match := `{"operationType":"Replace","id":"1","ifMatch":%q,"resourceBody":` + item("1") + `}`
	send(fmt.Sprintf(match, `"other"`)).want(207)
	got = send(fmt.Sprintf(match, tag), create("2"), `{"operationType":"Read","id":"2"}`).want(200)
	if read := got.list[2].(map[string]any); read["resourceBody"].(map[string]any)["id"] != "2" || read["eTag"] == "" {
		t.Errorf("a read in the batch returned %v", read)
	}
	send(`{"operationType":"Create","resourceBody":{"id":"4","pk":"q"}}`).want(207) // another partition key
	many := slices.Repeat([]string{`{"operationType":"Read","id":"1"}`}, 101)
	send(many...).want(400)
	send(many[:100]...).want(200)
	minimal := s.send("POST", items, "["+create("5")+"]", append(batch, "Prefer", "return=minimal")...)
	if minimal.want(200).list != nil {
		t.Errorf("a batch without content returned %v", minimal.list)
	}
	s.read("5").want(200)
}

// clock is one that tests set.
type clock struct{ now time.Time }

func (c *clock) on(s *service) {
	c.now = time.Date(2030, 1, 1, 12, 0, 0, 900e6, time.UTC)
	s.SetClock(func() time.Time { return c.now })
}

// "Time to live": counted in seconds from _ts. The property of an item takes
// precedence over that of the container, which has to be there.
func TestItemsExpire(t *testing.T) {
	for container, lives := range map[string][3]bool{ // items with a ttl of 10 and -1, and without one, after 10 s
		keeps: {false, true, true},
		`{"id":"c","partitionKey":{"paths":["/pk"]}}`:                {true, true, true},
		`{"id":"c","partitionKey":{"paths":["/pk"]},"defaultTtl":5}`: {false, true, false},
	} {
		s := start(t, container)
		var c clock
		c.on(s)
		s.create("10", `"ttl":10`).want(201)
		s.create("-1", `"ttl":-1`).want(201)
		if got := s.create("none").want(201); got.body["_ts"] != float64(c.now.Unix()) ||
			got.header.Get("Date") != c.now.Format(http.TimeFormat) {
			t.Errorf("at %v, _ts is %v and Date %v", c.now, got.body["_ts"], got.header.Get("Date"))
		}
		c.now = c.now.Add(9 * time.Second)
		s.read("10").want(200)
		c.now = c.now.Add(200 * time.Millisecond)
		for i, id := range []string{"10", "-1", "none"} {
			if alive := s.read(id).status == 200; alive != lives[i] {
				t.Errorf("%s: the item %s lives: %v", container, id, alive)
			}
		}
		if !lives[0] {
			s.create("10").want(201) // its id is free
		}
	}
	s := &service{fakecosmos.New(), t}
	defer s.Close()
	s.send("POST", "/dbs", `{"id":"d"}`).want(201)
	s.send("POST", "/dbs/d/colls", `{"id":"c","partitionKey":{"paths":["/pk"]},"defaultTtl":0}`).want(400)
}

// "Common response headers": x-ms-retry-after-ms says how long to wait after 429.
func TestThrottledRequestsAreNotApplied(t *testing.T) {
	s := start(t, keeps)
	s.SetThrottle(func(r fakecosmos.Request) (time.Duration, bool) { return 7 * time.Millisecond, r.N == 1 })
	if got := s.create("1").want(429); got.header.Get("x-ms-retry-after-ms") != "7" {
		t.Errorf("the headers are %v", got.header)
	}
	s.read("1").want(404)
	s.create("1").want(201)
}

// "Consistency levels": reads below bounded staleness may be old. A session token
// makes them as new as the write that returned it, at session consistency.
func TestSecondariesAreBehind(t *testing.T) {
	for level, fresh := range map[fakecosmos.Level][2]bool{ // without and with the token
		fakecosmos.Strong: {true, true}, fakecosmos.Bounded: {true, true}, fakecosmos.Session: {false, true},
		fakecosmos.Prefix: {false, false}, fakecosmos.Eventual: {false, false},
	} {
		s := start(t, keeps)
		s.SetLevel(level)
		old := s.create("1").want(201).etag()
		s.Freeze()
		newer := s.send("PUT", items+"/1", item("1"), in("p")...).want(200)
		without := s.read("1").want(200).etag()
		with := s.read("1", "x-ms-session-token", newer.header.Get("x-ms-session-token")).want(200).etag()
		if (without != old) != fresh[0] || (with != old) != fresh[1] {
			t.Errorf("%s: reads are fresh: %v, and with the token: %v", level, without != old, with != old)
		}
		s.send("PUT", items+"/1", item("1"), append(in("p"), "If-Match", old)...).want(412) // writes go to the primary
		read := s.send("POST", items, `[{"operationType":"Read","id":"1"}]`, batch...).want(200)
		if read.list[0].(map[string]any)["eTag"] != newer.etag() {
			t.Errorf("%s: a batch reads an old version", level)
		}
		s.Thaw()
		if s.read("1").etag() != newer.etag() {
			t.Errorf("%s: a secondary has not caught up", level)
		}
	}
}

func (s *service) query(text string, parameters string, headers ...string) (found []string, pages int) {
	s.t.Helper()
	token := ""
	for {
		h := append([]string{"x-ms-documentdb-query", "True", "x-ms-max-item-count", "3", "x-ms-continuation", token}, headers...)
		got := s.send("POST", items, fmt.Sprintf(`{"query":%q,"parameters":[%s]}`, text, parameters), h...).want(200)
		for _, d := range got.body["Documents"].([]any) {
			found = append(found, d.(map[string]any)["id"].(string))
		}
		pages++
		if token = got.header.Get("x-ms-continuation"); token == "" {
			return found, pages
		}
	}
}

func TestQueriesHavePages(t *testing.T) {
	s := start(t, keeps)
	for i := range 20 {
		s.send("POST", items, fmt.Sprintf(`{"id":"%02d","pk":"%d","n":{"i":%d}}`, i, i%5, i), in(fmt.Sprint(i%5))...).want(201)
	}
	found, pages := s.query("SELECT * FROM c WHERE c.n.i >= @from AND c.n.i < 12", `{"name":"@from","value":4}`)
	slices.Sort(found)
	if fmt.Sprint(found) != "[04 05 06 07 08 09 10 11]" || pages < 4 {
		t.Errorf("a query across partitions found %v in %d pages", found, pages)
	}
	if found, pages = s.query("SELECT * FROM c ORDER BY c.n.i DESC", "", in("2")...); fmt.Sprint(found) != "[17 12 07 02]" || pages != 2 {
		t.Errorf("a query of a partition found %v in %d pages", found, pages)
	}
	found, _ = s.query("SELECT c.id FROM c WHERE IS_DEFINED(c.n) AND NOT IS_DEFINED(c.m) AND ARRAY_CONTAINS(@ids, c.id)",
		`{"name":"@ids","value":["03","99"]}`)
	if fmt.Sprint(found) != "[03]" {
		t.Errorf("a query found %v", found)
	}
	// The gateway cannot order across partitions.
	s.send("POST", items, `{"query":"SELECT * FROM c ORDER BY c.id"}`, "x-ms-documentdb-query", "True").want(400)
}

// "Change feed modes", latest version: each item once, with its latest version, in
// the order of changes within a partition, and no deletions.
func TestTheChangeFeedHasTheLatestVersions(t *testing.T) {
	s := start(t, keeps)
	for _, id := range []string{"1", "2", "3"} {
		s.create(id).want(201)
	}
	s.send("PUT", items+"/1", item("1"), in("p")...).want(200)
	s.send("DELETE", items+"/2", "", in("p")...).want(204)
	found, until := s.feed("If-None-Match", "")
	if fmt.Sprint(found) != "[3 1]" {
		t.Errorf("the feed has %v", found)
	}
	latest := slices.Max(slices.Collect(maps.Values(until)))
	s.create("4").want(201)
	if found, _ = s.feed("If-None-Match", latest); fmt.Sprint(found) != "[4]" {
		t.Errorf("after %s the feed has %v", latest, found)
	}
}

// ranges returns the ids of the physical partitions.
func (s *service) ranges() (ids []string) {
	for _, r := range s.send("GET", "/dbs/d/colls/c/pkranges", "").want(200).body["PartitionKeyRanges"].([]any) {
		ids = append(ids, r.(map[string]any)["id"].(string))
	}
	return ids
}

// feed reads a page of the change feed of each partition, and returns the ids of
// the items, and the entity tags by partition.
func (s *service) feed(headers ...string) (found []string, until map[string]string) {
	s.t.Helper()
	until = make(map[string]string)
	for _, id := range s.ranges() {
		got := s.send("GET", items, "", append(headers, "A-IM", "Incremental feed", "x-ms-documentdb-partitionkeyrangeid", id)...)
		if until[id] = got.etag(); got.status == 304 {
			continue
		}
		for _, d := range got.want(200).body["Documents"].([]any) {
			found = append(found, d.(map[string]any)["id"].(string))
		}
	}
	return found, until
}

// "Change feed pull model": from now on, from a point in time, or from the
// beginning. "Common request headers": a time is ignored beside an entity tag. A
// time in another format is ignored too, as in issue 2031 of azure-cosmos-dotnet-v3.
func TestWhereTheChangeFeedBegins(t *testing.T) {
	s := start(t, keeps)
	begin := time.Now().Truncate(time.Second)
	now := begin
	s.SetClock(func() time.Time { return now })
	s.create("1").want(201)
	now = now.Add(time.Minute)
	s.create("2").want(201)
	since := begin.Add(time.Second).UTC()
	for _, c := range []struct {
		want    string
		headers []string
	}{
		{"[1 2]", nil},
		{"[]", []string{"If-None-Match", "*"}},
		{"[2]", []string{"If-Modified-Since", since.Format(http.TimeFormat)}},
		{"[1 2]", []string{"If-Modified-Since", since.Format(time.RFC3339)}},
		{"[1 2]", []string{"If-Modified-Since", since.Format(time.RFC1123)}}, // UTC instead of GMT
		{"[]", []string{"If-None-Match", "*", "If-Modified-Since", since.Format(http.TimeFormat)}},
	} {
		if found, _ := s.feed(c.headers...); fmt.Sprint(found) != c.want {
			t.Errorf("with %q the feed has %v, want %s", c.headers, found, c.want)
		}
	}
	_, until := s.feed("If-None-Match", "*")
	s.create("3").want(201)
	latest := slices.Max(slices.Collect(maps.Values(until)))
	if found, _ := s.feed("If-None-Match", latest); fmt.Sprint(found) != "[3]" {
		t.Errorf("after a feed that began now, it has %v", found)
	}
}

// "Partitioning and horizontal scaling": a partition that is split is gone. The
// entity tags of its feed hold for those in its place, as the clients of Microsoft
// take them to. Queries go on.
func TestPartitionsAreSplit(t *testing.T) {
	s := start(t, keeps)
	const n = 40
	create := func(from, to int) {
		for i := from; i < to; i++ {
			s.send("POST", items, fmt.Sprintf(`{"id":"%02d","pk":"%d"}`, i, i), in(fmt.Sprint(i))...).want(201)
		}
	}
	create(0, n/2)
	before := s.ranges()
	_, until := s.feed("If-None-Match", "")
	first := s.send("POST", items, `{"query":"SELECT * FROM c"}`, "x-ms-documentdb-query", "True", "x-ms-max-item-count", "3").want(200)
	s.Split("d", "c")
	after := s.ranges()
	if len(after) != 2*len(before) {
		t.Fatalf("of the partitions %v the split made %v", before, after)
	}
	for _, id := range before {
		got := s.send("GET", items, "", "A-IM", "Incremental feed", "x-ms-documentdb-partitionkeyrangeid", id).want(410)
		if got.header.Get("x-ms-substatus") != "1002" {
			t.Errorf("the partition %s is gone with the substatus %q", id, got.header.Get("x-ms-substatus"))
		}
	}
	found, seen := []string{}, map[string]bool{}
	for _, d := range first.body["Documents"].([]any) {
		seen[d.(map[string]any)["id"].(string)] = true
	}
	for token := first.header.Get("x-ms-continuation"); token != ""; {
		got := s.send("POST", items, `{"query":"SELECT * FROM c"}`, "x-ms-documentdb-query", "True", "x-ms-continuation", token).want(200)
		for _, d := range got.body["Documents"].([]any) {
			id := d.(map[string]any)["id"].(string)
			if seen[id] {
				t.Errorf("a query that goes on after a split finds %s again", id)
			}
			seen[id] = true
		}
		token = got.header.Get("x-ms-continuation")
	}
	if len(seen) != n/2 {
		t.Errorf("a query during a split found %d of %d items", len(seen), n/2)
	}
	create(n/2, n)
	for i, id := range after {
		etag := until[before[i/2]]
		got := s.send("GET", items, "", "A-IM", "Incremental feed", "If-None-Match", etag, "x-ms-documentdb-partitionkeyrangeid", id)
		if got.status == 304 {
			continue
		}
		for _, d := range got.want(200).body["Documents"].([]any) {
			found = append(found, d.(map[string]any)["id"].(string))
		}
	}
	slices.Sort(found)
	if len(found) != n/2 || found[0] != fmt.Sprint(n/2) {
		t.Errorf("after the split, the feed has %v", found)
	}
	s.SetThrottle(func(r fakecosmos.Request) (time.Duration, bool) { return time.Second, r.Kind == "Feed" })
	s.send("GET", items, "", "A-IM", "Incremental feed", "x-ms-documentdb-partitionkeyrangeid", after[0]).want(429)
}

func TestFaults(t *testing.T) {
	for fault, want := range map[fakecosmos.Fault]struct {
		status  int
		applied bool
	}{
		fakecosmos.LoseRequest: {0, false}, fakecosmos.LoseReply: {0, true}, fakecosmos.Delay: {0, false},
		fakecosmos.Unavailable: {503, true}, fakecosmos.Refused: {503, false},
	} {
		s := start(t, keeps)
		s.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
			if r.Kind == "Create" {
				return fault
			}
			return fakecosmos.None
		})
		if got := s.create("1"); got.status != want.status || got.cut != (want.status == 0) {
			t.Errorf("fault %d: the status is %d", fault, got.status)
		}
		if applied := s.read("1").status == 200; applied != want.applied {
			t.Errorf("fault %d: applied is %v", fault, applied)
		}
		if late := s.DeliverLate(); fault == fakecosmos.Delay && fmt.Sprint(late) != "[201]" {
			t.Errorf("the late request has the statuses %v", late)
		}
	}
}
