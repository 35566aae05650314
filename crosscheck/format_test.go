package crosscheck_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/store/memstore"
)

func TestFormatsThatAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		f    crosscheck.Format
		text string
	}{
		"commas":            {crosscheck.Format{}, "id,note\na,1\nb,\"two\nlines\"\n"},
		"a BOM and CRLF":    {crosscheck.Format{}, "\ufeffid,note\r\na,1\r\n\r\nb,2\r\n"},
		"no line end":       {crosscheck.Format{}, "id\na\nb"},
		"semicolons":        {crosscheck.Format{Delimiter: ';', ID: "the id"}, "note;\"the id\"\n\"x;y\";a\n\"say \"\"b\"\"\";b\n"},
		"tabs":              {crosscheck.Format{Delimiter: '\t'}, "note\tid\nx\ta\ny\tb\n"},
		"another case":      {crosscheck.Format{}, "note,Reference\nx,a\ny,b\n"},
		"objects":           {crosscheck.Format{}, "{\"id\": \"a\"}\n\n{\"id\": \"b\", \"id2\": [1]}\r\n"},
		"a deep member":     {crosscheck.Format{ID: "/meta/a~1b"}, "\ufeff {\"meta\": {\"a/b\": \"a\"}}\n{\"meta\": {\"a/b\": \"b\"}}"},
		"without some":      {crosscheck.Format{SkipEmpty: true}, "note,id\nfee,\nx,a\ny,b\n"},
		"JSON without some": {crosscheck.Format{ID: "id", SkipEmpty: true}, "{\"fee\": 1}\n{\"id\": null}\n{\"id\": \"a\"}\n{\"id\":\"b\"}\n"},
		"CSV by order":      {crosscheck.Format{Syntax: crosscheck.CSV, ID: "{id"}, "{id\na\nb\n"},
	} {
		report := read(t, test.f, test.text)
		found, _ := run(t, crosscheck.Comparison{Store: memstore.New(nil), Report: report})
		if report.Lines != 2 || len(found) != 2 || found[0].Key.ID != "a" || found[1].Key.ID != "b" {
			t.Errorf("%s: %d lines, %+v", name, report.Lines, found)
		}
	}
}

func TestBadReports(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, test := range []struct {
		f          crosscheck.Format
		text, want string
	}{
		{crosscheck.Format{}, "", "the report: it is empty"},
		{crosscheck.Format{}, "\n\n", "the report: it is empty"},
		{crosscheck.Format{Syntax: crosscheck.JSONLines}, "\n\n", "the report: it is empty"},
		{crosscheck.Format{}, "\x1f\x8b\x08\x00abc", "compressed with gzip: unpack it"},
		{crosscheck.Format{}, "PK\x03\x04abc", "export it as CSV"},
		{crosscheck.Format{}, "\xff\xfei\x00d\x00", "UTF-16: convert it"},
		{crosscheck.Format{}, "[{\"id\":1}]", "jq -c '.[]'"},
		{crosscheck.Format{}, "order;amount\n1;2\n", `has none of the columns id, key, idempotency_key, reference, but "order;amount": name the column with the ID. Perhaps the delimiter`},
		{crosscheck.Format{ID: "order"}, "id,amount\n1,2\n", `has no column "order", but "id", "amount"`},
		{crosscheck.Format{}, "id,id\n1,2\n", `two columns "id"`},
		{crosscheck.Format{}, "id,a\n1,2\n3\n", "line 3 of the report: it has 1 fields, and the header has 2"},
		{crosscheck.Format{}, "id,a\n1,2\n,2\n", "line 3 of the report: id is empty: complete the line, or skip"},
		{crosscheck.Format{}, "id,a\n1,\"2\n\n" + long, `line 2 of the report: extraneous or missing " in quoted-field`},
		{crosscheck.Format{}, "id,a\n1,\"" + strings.Repeat("x\n", 1<<20), "line 2 of the report: it has over 1 MiB: perhaps a quote is not closed"},
		{crosscheck.Format{}, "id\n" + long + "\n", "line 2 of the report: id: "},
		{crosscheck.Format{}, "id\nx\nM\xfcller\n", "line 3 of the report: it is not UTF-8"},
		{crosscheck.Format{}, "id\nx\x01\n", "line 2 of the report: id: "},
		{crosscheck.Format{}, "id\n\"x \"\n", "line 2 of the report: id is \"x \", with a space at an end"},
		{crosscheck.Format{Key: "id"}, "id\norder-1\n", "is no key as it travels"},
		{crosscheck.Format{Key: "id"}, "id\n9f1b4ff3-7a5c-4e57-a7a9-2ac0b1f1c3a5\n", "is no key as it travels"},
		{crosscheck.Format{Amount: "a"}, "id,a\n1,\"1,50\"\n", "which is not a number: write it like 1234.50, or say that it has a decimal comma"},
		{crosscheck.Format{Amount: "a"}, "id,a\n1,1 EUR\n", "which is not a number"},
		{crosscheck.Format{Amount: "a"}, "id,a\n1,0x10\n", "which is not a number"},
		{crosscheck.Format{Amount: "a"}, "id,a\n1,1e99999\n", "which is not a number"},
		{crosscheck.Format{Amount: "a", DecimalComma: true}, "id,a\n1,\"1.234,50\"\n", "without points"},
		{crosscheck.Format{}, "{\"id\":\"1\"}\n{\"id\":\n", "line 2 of the report: it is not JSON"},
		{crosscheck.Format{}, "{\"id\":\"1\"} {}\n", "line 1 of the report: it is not JSON: there is more after the value"},
		{crosscheck.Format{}, "{\"id\":\"1\"}\n7\n", "line 2 of the report: it is not an object"},
		{crosscheck.Format{}, "{\"id\":[1]}\n", "id is neither a string nor a number"},
		{crosscheck.Format{}, "{\"id\":\"\xff\"}\n", "it is not UTF-8"},
		{crosscheck.Format{}, "{\"id\":\"" + strings.Repeat("x", 1<<20) + "\"}\n", "line 1 of the report: it has over 1 MiB"},
		{crosscheck.Format{Status: "state", Happened: []string{"paid"}}, "{\"id\":\"1\",\"status\":\"paid\"}\n", `no line has "state"`},
		{crosscheck.Format{ID: "a", Key: "b"}, "a,b\n", "give one"},
		{crosscheck.Format{Status: "a"}, "id,a\n", "needs the values"},
		{crosscheck.Format{Delimiter: '"'}, "id\n", "cannot be a delimiter"},
	} {
		_, err := crosscheck.Read(t.Context(), strings.NewReader(test.text), test.f, pay)
		var wrong *crosscheck.FormatError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.60q: %v, want %q", test.text, err, test.want)
		}
	}
	if _, err := crosscheck.Read(t.Context(), strings.NewReader("id\n"), crosscheck.Format{}, once.Key{}); !errors.Is(err, once.ErrInvalid) {
		t.Error(err)
	}
}

// FuzzRead: whatever a report contains, it is read twice alike or refused.
func FuzzRead(f *testing.F) {
	for _, text := range []string{"id,a\n1,2\n", "id;a\r\n\"1\n\";2", "{\"id\":1,\"a\":\"2\"}\n\n", "\ufeffid\n1\n1\n", "id,a\n1,\"2"} {
		f.Add(text, false)
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, amounts bool) {
		format, c := crosscheck.Format{SkipEmpty: true}, crosscheck.Comparison{Store: memstore.New(nil)}
		if amounts {
			format.Amount, c.Amount = "a", "/a"
		}
		var err error
		if c.Report, err = crosscheck.Read(t.Context(), strings.NewReader(text), format, pay); err != nil {
			var wrong *crosscheck.FormatError
			if !errors.As(err, &wrong) {
				t.Fatal(err)
			}
			return
		}
		found, summary := run(t, c)
		lines := 0
		for _, f := range found {
			lines += len(f.Lines)
		}
		if lines != c.Report.Lines || summary.Foreign != len(found) {
			t.Fatalf("%d of %d lines, %+v", lines, c.Report.Lines, summary)
		}
	})
}
