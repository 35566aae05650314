package dynamofake

import (
	"encoding/json"
	"fmt"
	"strings"
)

// event is a write in the stream of a table.
type event struct {
	name string
	keys item
}

// SplitStream ends the open shard of the stream of a table, and begins another, as
// the service does some time.
func (s *Server) SplitStream(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[name]
	t.shards = append(t.shards, len(t.events))
}

// HoldIndexes keeps indexes, and reads that are not consistent, behind the table by
// this many writes.
func (s *Server) HoldIndexes(writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = writes
}

// HideInIndexes keeps indexes from having items of which a function reports true, by
// their partition key. A nil function hides nothing.
func (s *Server) HideInIndexes(hides func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hides = hides
}

func (t *table) stream(name string, it item) {
	if t.shards == nil {
		return
	}
	keys := make(item)
	for _, key := range t.keys {
		keys[key] = it[key]
	}
	t.events = append(t.events, event{name, keys})
}

const streamOf = "arn:aws:dynamodb:eu-central-1:000000000000:table/%s/stream/1"

// readStream answers a request about the stream of a table.
func (s *Server) readStream(operation string, body []byte) (any, *problem) {
	var r struct{ StreamArn, ShardId, ShardIteratorType, ShardIterator string }
	_ = json.Unmarshal(body, &r)
	table, shard, at := "", 0, 0
	if parts := strings.Split(r.StreamArn, "/"); len(parts) == 4 {
		table = parts[1]
	}
	if operation == "GetRecords" {
		parts := strings.Split(r.ShardIterator, "|")
		table = parts[0]
		_, _ = fmt.Sscan(strings.Join(parts[1:], " "), &shard, &at)
	} else {
		_, _ = fmt.Sscanf(r.ShardId, "shardId-%d", &shard)
	}
	t := s.tables[table]
	if t == nil || shard >= len(t.shards) {
		return nil, &problem{code: "ResourceNotFoundException", message: "Requested resource not found: Stream"}
	}
	// The shard n has the events from shards[n] to the begin of the next.
	end, ended := len(t.events), shard+1 < len(t.shards)
	if ended {
		end = t.shards[shard+1]
	}
	switch operation {
	case "DescribeStream":
		var shards []any
		for n, begin := range t.shards {
			numbers := map[string]any{"StartingSequenceNumber": fmt.Sprint(begin)}
			if n+1 < len(t.shards) {
				numbers["EndingSequenceNumber"] = fmt.Sprint(t.shards[n+1])
			}
			shards = append(shards, map[string]any{"ShardId": fmt.Sprintf("shardId-%021d", n), "SequenceNumberRange": numbers})
		}
		return map[string]any{"StreamDescription": map[string]any{"StreamArn": r.StreamArn, "StreamStatus": "ENABLED", "Shards": shards}}, nil
	case "GetShardIterator":
		if at = t.shards[shard]; r.ShardIteratorType == "LATEST" {
			at = end
		}
		return map[string]any{"ShardIterator": fmt.Sprintf("%s|%d|%d", table, shard, at)}, nil
	case "GetRecords":
		records := []any{}
		for _, e := range t.events[at:end] {
			records = append(records, map[string]any{"eventName": e.name, "dynamodb": map[string]any{"Keys": e.keys}})
		}
		out := map[string]any{"Records": records}
		if !ended {
			out["NextShardIterator"] = fmt.Sprintf("%s|%d|%d", table, shard, end)
		}
		return out, nil
	}
	return nil, &problem{code: "UnknownOperationException", message: operation}
}
