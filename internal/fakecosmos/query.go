package fakecosmos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// query is SELECT * FROM c [WHERE condition AND …] [ORDER BY path [DESC]], or the
// same with properties of the first level instead of the asterisk.
type query struct {
	properties []string // nil: all
	conditions []func(map[string]any) bool
	order      []string
	descending bool
	limits     *limits // nil: no condition compares with a text
}

var (
	selectAll = regexp.MustCompile(`(?i)^\s*SELECT (\*|c\.\w+(?:,\s*c\.\w+)*) FROM c(?:\s+WHERE (.*?))?(?:\s+ORDER BY c\.([\w.]+)(\s+DESC)?)?\s*$`)
	and       = regexp.MustCompile(`(?i)\s+AND\s+`)
	isDefined = regexp.MustCompile(`(?i)^(NOT )?IS_DEFINED\(c\.([\w.]+)\)$`)
	contains  = regexp.MustCompile(`(?i)^ARRAY_CONTAINS\((@\w+),\s*c\.([\w.]+)\)$`)
	compares  = regexp.MustCompile(`^c\.([\w.]+)\s*(=|!=|<=|>=|<|>)\s*(@\w+|'[^']*'|"[^"]*"|-?[\d.]+|true|false|null)$`)
)

func newQuery(text string, parameters map[string]any) (*query, error) {
	parts := selectAll.FindStringSubmatch(text)
	if parts == nil {
		return nil, fmt.Errorf("fakecosmos does not understand the query %q", text)
	}
	q := &query{descending: parts[4] != ""}
	if parts[1] != "*" {
		for name := range strings.SplitSeq(parts[1], ",") {
			q.properties = append(q.properties, strings.TrimPrefix(strings.TrimSpace(name), "c."))
		}
	}
	if parts[3] != "" {
		q.order = strings.Split(parts[3], ".")
	}
	if parts[2] == "" {
		return q, nil
	}
	for _, text := range and.Split(parts[2], -1) {
		condition, err := q.newCondition(strings.TrimSpace(text), parameters)
		if err != nil {
			return nil, err
		}
		q.conditions = append(q.conditions, condition)
	}
	return q, nil
}

func (q *query) newCondition(text string, parameters map[string]any) (func(map[string]any) bool, error) {
	if m := isDefined.FindStringSubmatch(text); m != nil {
		path, want := strings.Split(m[2], "."), m[1] == ""
		return func(body map[string]any) bool { _, is := lookUp(body, path); return is == want }, nil
	}
	if m := contains.FindStringSubmatch(text); m != nil {
		path := strings.Split(m[2], ".")
		list, ok := parameters[m[1]].([]any)
		if !ok {
			return nil, fmt.Errorf("the parameter %s is not an array", m[1])
		}
		return func(body map[string]any) bool {
			is, defined := lookUp(body, path)
			return defined && slices.ContainsFunc(list, func(v any) bool { n, ok := compare(is, v); return ok && n == 0 })
		}, nil
	}
	m := compares.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("fakecosmos does not understand the condition %q", text)
	}
	path, operator, value := strings.Split(m[1], "."), m[2], any(nil)
	if m[3][0] == '@' {
		var ok bool
		if value, ok = parameters[m[3]]; !ok {
			return nil, fmt.Errorf("there is no parameter %s", m[3])
		}
	} else if err := json.Unmarshal([]byte(strings.ReplaceAll(m[3], "'", `"`)), &value); err != nil {
		return nil, err
	}
	holds := map[string]func(n int) bool{
		"=": func(n int) bool { return n == 0 }, "!=": func(n int) bool { return n != 0 },
		"<": func(n int) bool { return n < 0 }, "<=": func(n int) bool { return n <= 0 },
		">": func(n int) bool { return n > 0 }, ">=": func(n int) bool { return n >= 0 },
	}[operator]
	if text, ok := value.(string); ok {
		q.limit(path, operator, text)
	}
	return func(body map[string]any) bool {
		is, defined := lookUp(body, path)
		n, same := compare(is, value)
		return defined && same && holds(n)
	}, nil
}

// limit notes a comparison with a text, if it is with the first property that has one.
func (q *query) limit(path []string, operator, text string) {
	if q.limits == nil {
		q.limits = &limits{path: path}
	}
	if !slices.Equal(q.limits.path, path) {
		return
	}
	if strings.ContainsAny(operator, ">=") && !strings.Contains(operator, "<") && operator != "!=" {
		q.limits.low = max(q.limits.low, text)
	}
	if strings.ContainsAny(operator, "<=") && !strings.Contains(operator, ">") && operator != "!=" && (q.limits.high == "" || text < q.limits.high) {
		q.limits.high = text
	}
}

func (q *query) selects(body map[string]any) bool {
	for _, holds := range q.conditions {
		if !holds(body) {
			return false
		}
	}
	return true
}

func lookUp(body map[string]any, path []string) (value any, defined bool) {
	value = body
	for _, name := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, defined = object[name]; !defined {
			return nil, false
		}
	}
	return value, true
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		return f, err == nil
	case float64:
		return v, true
	case int64:
		return float64(v), true
	}
	return 0, false
}

// compare compares values of one type. Those of different types are not
// comparable.
func compare(a, b any) (n int, ok bool) {
	if x, ok := number(a); ok {
		y, ok := number(b)
		return cmp.Compare(x, y), ok
	}
	switch x := a.(type) {
	case string:
		y, ok := b.(string)
		return cmp.Compare(x, y), ok
	case bool:
		y, ok := b.(bool)
		return cmp.Compare(strconv.FormatBool(x), strconv.FormatBool(y)), ok
	case nil:
		return 0, b == nil
	}
	return 0, false
}

// query answers a page of a query: of one partition key, or of one physical
// partition after the other. Pages across partitions may be short or empty.
func (c *itemCall) query(key string) reply {
	var in struct {
		Query      string
		Parameters []struct {
			Name  string
			Value any
		}
	}
	if err := json.Unmarshal(c.body, &in); err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	parameters := make(map[string]any)
	for _, p := range in.Parameters {
		parameters[p.Name] = p.Value
	}
	q, err := newQuery(in.Query, parameters)
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	var p *partition
	var from place
	var skip int
	token := c.header.Get("x-ms-continuation")
	switch {
	case key != "":
		p = c.container.of(key)
		if n, _ := fmt.Sscanf(token, "skip %d", &skip); n != 1 && token != "" {
			return refuse(http.StatusBadRequest, "%q is not a continuation", token)
		}
	case len(q.order) > 0:
		return refuse(http.StatusBadRequest, "the gateway does not order across partitions")
	default:
		if n, _ := fmt.Sscanf(token, "after %d %q", &from.hash, &from.name); n != 2 && token != "" || from.hash >= hashes {
			return refuse(http.StatusBadRequest, "%q is not a continuation", token)
		}
		p = c.container.at(from.hash)
	}
	type match struct {
		version
		at place
	}
	var found []match
	size := c.pageSize()
	for it, v := range p.after(from, q.limits, c.replica(p), c.server.now()) {
		if key != "" && it.key != key || !q.selects(v.body) {
			continue
		}
		if found = append(found, match{v, place{it.hash, it.name}}); key == "" && len(found) > size {
			break
		}
	}
	if len(q.order) > 0 {
		slices.SortStableFunc(found, func(a, b match) int {
			x, _ := lookUp(a.body, q.order)
			y, _ := lookUp(b.body, q.order)
			n, _ := compare(x, y)
			if q.descending {
				return -n
			}
			return n
		})
	}
	found = found[min(skip, len(found)):]
	page := found[:min(size, len(found))]
	headers := make(map[string]string)
	switch {
	case key != "" && len(page) < len(found):
		headers["x-ms-continuation"] = fmt.Sprintf("skip %d", skip+len(page))
	case key != "":
	case len(page) < len(found):
		last := page[len(page)-1].at
		headers["x-ms-continuation"] = fmt.Sprintf("after %d %+q", last.hash, last.name)
	case p.to < hashes:
		headers["x-ms-continuation"] = fmt.Sprintf("after %d %q", p.to, "")
	}
	texts := make([]json.RawMessage, len(page))
	for i, m := range page {
		texts[i] = q.project(m.version)
	}
	return documents(c.container, texts, headers)
}

// project returns what a query selects of an item.
func (q *query) project(v version) []byte {
	if q.properties == nil {
		return v.text
	}
	some := make(map[string]any)
	for _, name := range q.properties {
		if value, ok := v.body[name]; ok {
			some[name] = value
		}
	}
	text, err := json.Marshal(some)
	if err != nil {
		panic(err)
	}
	return text
}

func documents(c *container, texts []json.RawMessage, headers map[string]string) reply {
	return reply{status: http.StatusOK, headers: headers,
		body: map[string]any{"_rid": c.properties["_rid"], "_count": len(texts), "Documents": texts}}
}

func (c *itemCall) pageSize() int {
	if n, err := strconv.Atoi(c.header.Get("x-ms-max-item-count")); err == nil && n > 0 {
		return n
	}
	return 100
}

// feed answers a page of the change feed of one physical partition: the latest
// version of each item that changed since, in the order of the changes. It shows
// no deletion. Since is the entity tag of an earlier page, which one from before a
// split still is; or now, if it is *; or the time of If-Modified-Since, if that is
// in the format of RFC 1123 and there is no entity tag; or else the beginning.
func (c *itemCall) feed() reply {
	id, err := strconv.Atoi(c.header.Get("x-ms-documentdb-partitionkeyrangeid"))
	if c.header.Get("A-IM") == "" || err != nil || id < 0 || id >= c.container.next {
		return refuse(http.StatusBadRequest, "fakecosmos reads only the change feed of a range")
	}
	p := c.container.byID(id)
	if p == nil {
		rep := refuse(http.StatusGone, "the partition was split")
		rep.headers = map[string]string{"x-ms-substatus": "1002"}
		return rep
	}
	var since, from int64
	switch known := strings.Trim(c.header.Get("If-None-Match"), `"`); known {
	case "":
		if date, err := http.ParseTime(c.header.Get("If-Modified-Since")); err == nil {
			from = date.Unix()
		}
	case "*":
		since = c.replica(p)
	default:
		if since, err = strconv.ParseInt(known, 10, 64); err != nil {
			return refuse(http.StatusBadRequest, "%q is not a continuation", known)
		}
	}
	var changed []version
	for _, v := range p.after(place{}, nil, c.replica(p), c.server.now()) {
		if ts, _ := v.body["_ts"].(int64); v.lsn > since && ts >= from {
			changed = append(changed, v)
		}
	}
	slices.SortFunc(changed, func(a, b version) int { return cmp.Compare(a.lsn, b.lsn) })
	if changed = changed[:min(c.pageSize(), len(changed))]; len(changed) == 0 {
		return reply{status: http.StatusNotModified, etag: fmt.Sprintf(`"%d"`, max(since, c.replica(p)))}
	}
	texts := make([]json.RawMessage, len(changed))
	for i, v := range changed {
		texts[i] = v.text
	}
	rep := documents(c.container, texts, nil)
	rep.etag = fmt.Sprintf(`"%d"`, changed[len(changed)-1].lsn)
	return rep
}
