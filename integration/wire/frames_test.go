package wire

import (
	"bufio"
	"bytes"
	"slices"
	"testing"
)

// These answers do not occur with the driver of the other tests: those without
// CLIENT_DEPRECATE_EOF, and those with several results.
func TestMySQLAnswersEnd(t *testing.T) {
	ok, okMore := []byte{0, 0, 0, 2, 0, 0, 0}, []byte{0, 0xfc, 1, 2, 0, moreResults, 0, 0, 0}
	eof, eofMore := []byte{0xfe, 0, 0, 2, 0}, []byte{0xfe, 0, 0, moreResults, 0}
	okEnd, okEndMore := []byte{0xfe, 0, 0, 2, 0, 0, 0}, []byte{0xfe, 0, 0, moreResults, 0, 0, 0}
	bad := []byte{0xff, 1, 0}
	columns, column, row := []byte{1}, []byte{3, 'd', 'e', 'f'}, []byte{1, 'x'}
	prepared := func(columns, parameters byte) []byte {
		return []byte{0, 9, 0, 0, 0, columns, 0, parameters, 0, 0, 0, 0}
	}
	for name, test := range map[string]struct {
		kind    string
		modern  bool
		packets [][]byte
	}{
		"ok":                  {"Query", false, [][]byte{ok}},
		"two ok":              {"Query", false, [][]byte{okMore, ok}},
		"error":               {"Query", false, [][]byte{bad}},
		"rows":                {"Query", false, [][]byte{columns, column, eof, row, row, eof}},
		"no rows":             {"Query", false, [][]byte{columns, column, eof, eof}},
		"an error in rows":    {"Query", false, [][]byte{columns, column, eof, row, bad}},
		"rows, rows":          {"Query", false, [][]byte{columns, column, eof, row, eofMore, columns, column, eof, eof}},
		"rows, ok":            {"Execute", false, [][]byte{columns, column, eof, row, eofMore, ok}},
		"modern rows":         {"Query", true, [][]byte{columns, column, row, row, okEnd}},
		"modern rows, rows":   {"Query", true, [][]byte{columns, column, row, okEndMore, columns, column, okEnd}},
		"modern without rows": {"Query", true, [][]byte{columns, column, okEnd}},
		"prepared":            {"Prepare", false, [][]byte{prepared(0, 0)}},
		"prepared, both":      {"Prepare", false, [][]byte{prepared(1, 2), column, column, eof, column, eof}},
		"modern, both":        {"Prepare", true, [][]byte{prepared(1, 2), column, column, column}},
		"cannot be prepared":  {"Prepare", false, [][]byte{bad}},
		"ping":                {"Ping", false, [][]byte{ok}},
		"login":               {"Login", false, [][]byte{{0xfe, 'x'}, {1, 4}, ok}},
		"login refused":       {"Login", false, [][]byte{{0xfe, 'x'}, bad}},
	} {
		t.Run(name, func(t *testing.T) {
			talk := &mysql{modern: test.modern, prepared: map[uint32]string{}, commands: []*command{{kind: test.kind, text: "SQL"}}}
			var stream bytes.Buffer
			for i, body := range test.packets {
				stream.Write([]byte{byte(len(body)), 0, 0, byte(i + 1)})
				stream.Write(body)
			}
			in := bufio.NewReader(&stream)
			for i := range test.packets {
				_, last, err := talk.reply(in)
				if err != nil || last != (i == len(test.packets)-1) {
					t.Errorf("packet %d of %d is the last: %v, %v", i+1, len(test.packets), last, err)
				}
			}
			if test.kind == "Prepare" && len(test.packets[0]) > 3 && talk.prepared[9] != "SQL" {
				t.Errorf("the statement is known as %q", talk.prepared[9])
			}
		})
	}
}

// The test shows which messages are one request, and what it runs.
func TestPostgresRequests(t *testing.T) {
	message := func(kind byte, parts ...string) []byte {
		var body []byte
		for _, part := range parts {
			body = append(append(body, part...), 0)
		}
		return append([]byte{kind, 0, 0, 0, byte(4 + len(body))}, body...)
	}
	talk := Postgres.begin()
	var stream bytes.Buffer
	stream.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}) // SSLRequest
	stream.Write([]byte{0, 0, 0, 9, 0, 3, 0, 0, 0})
	for _, m := range [][]byte{
		message('p', "secret"),
		message('P', "named", "UPDATE a"), message('H'),
		message('B', "portal", "named"), message('E', "portal"), message('S'),
		message('P', "", "UPDATE b"), message('B', "", ""), message('E', ""), message('B', "", "named"), message('E', ""), message('S'),
		message('Q', "UPDATE c"), message('X'),
	} {
		stream.Write(m)
	}
	in := bufio.NewReader(&stream)
	for i, want := range []struct {
		here, answered bool
		runs           []string
	}{
		{true, false, nil}, {false, false, nil}, {false, false, nil}, {false, false, nil},
		{false, true, []string{"UPDATE a"}}, {false, true, []string{"UPDATE b", "UPDATE a"}},
		{false, true, []string{"UPDATE c"}}, {false, false, nil},
	} {
		req, err := talk.request(in)
		if err != nil {
			t.Fatal(err)
		}
		var runs []string
		for _, m := range req.Messages {
			if m.runs() {
				runs = append(runs, m.Text)
			}
		}
		if here := len(req.here) > 0; here != want.here || req.answered != want.answered || !slices.Equal(runs, want.runs) {
			t.Errorf("request %d: answered here %v, by the server %v, runs %q", i, here, req.answered, runs)
		}
	}
}
