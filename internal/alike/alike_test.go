package alike

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once/internal/name"
)

func TestReasonsThatAreAlikeHaveOneText(t *testing.T) {
	for want, reasons := range map[string][]string{
		"":                     {"", " \n "},
		"no such customer …":   {"no such customer 4711", "no such customer c-9f_3", "no  such\tcustomer 7e57\nat main.go:3", "\n no such customer 1"},
		"timed out":            {"timed out", "timed out\nat 12:01"},
		"timed out after …":    {"timed out after 10s", "timed out after 1.5s", "timed out after 1m30.25s"},
		"read tcp …->…: reset": {"read tcp 10.0.0.7:51234->10.0.0.9:443: reset", "read tcp 192.168.1.1:1->10.1.0.9:5432: reset"},
		"since …":              {"since 2026-11-28T15:13:01.25Z", "since 2025-01-02T03:04:05Z"},
		"key …: lost":          {"key 0198c7de-0000-7000-8000-000000000001: lost", "key 0af7651916cd43dd8448eb211c80319c: lost"},
		"no mailbox <…>":       {"no mailbox <ann@shop>", "no mailbox <bob-b@mail>"},
		`Post "https://bank.example/…/charges/…": EOF`: {`Post "https://bank.example/v1/charges/ch_1": EOF`, `Post "https://bank.example/v2/charges/2": EOF`},
		"unknown outcome: timed out after …":           {"unknown outcome: timed out after 10ms", "unknown outcome:  timed out after 3s\nx"},
		"unknown outcome: ":                            {name.UnknownOutcome, name.UnknownOutcome + "\n"},
		"sealed:…":                                     {"sealed:AAAA", "sealed:b0-_z"},
		"заказ … не найден":                            {"заказ а12 не найден", "заказ 7б не найден"},
	} {
		for _, reason := range reasons {
			if got := Text(reason); got != want {
				t.Errorf("%q has the text %q, want %q", reason, got, want)
			}
		}
	}
}

func TestReasonsOfDifferentCausesDiffer(t *testing.T) {
	reasons := []string{"", "timed out", "unknown outcome: timed out", " unknown outcome: timed out", "unknown  outcome: timed again", "unknown outcome: ", "unknown outcome:",
		"the bank said: status 402", "the bank said: status 503", "HTTP 404", "HTTP 409", "ERROR: x (SQLSTATE 23505)", "ERROR: x (SQLSTATE 42P01)", "Error 1062: x", "Error 1205: x",
		`no topic "a"`, `no topic "b"`, "exit status 1", "exit status 2", "exit code 2", "rpc error: code = 5", "rpc error: code = 7", "exit code 127", "exit code 137", "sealed:AAAA", "unknown outcome: sealed:AAAA"}
	seen := map[string]string{}
	for _, reason := range reasons {
		text := Text(reason)
		if other, ok := seen[text]; ok {
			t.Errorf("%q and %q have the text %q", other, reason, text)
		}
		seen[text] = reason
		unknown := strings.HasPrefix(reason, name.UnknownOutcome)
		if strings.HasPrefix(text, name.UnknownOutcome) != unknown {
			t.Errorf("%q has the text %q", reason, text)
		}
	}
}

// A text ends after 200 bytes, and never inside of what varies: the beginnings of two
// ids differ.
func TestTextsAreShort(t *testing.T) {
	for n := range 2 * longest {
		front := strings.Repeat("é", n/2) + strings.Repeat("x", n%2)
		for _, tail := range []string{" abc1", " abd2", " a" + strings.Repeat("b", 1<<16) + "9", ".ab.1"} {
			text := Text(name.UnknownOutcome + front + tail)
			if len(text) > len(name.UnknownOutcome)+longest || !utf8.ValidString(text) || strings.Contains(text, " a") {
				t.Fatalf("%d bytes: %q", len(text), text)
			}
		}
	}
}

// However long a reason is, and whatever is in it, its text is made in bounded work.
func TestTextsAreMadeInBoundedWork(t *testing.T) {
	for _, part := range []string{"1.", "1. ", "a1,", "1-.", "\xff", "sealed:1 ", "1@b:"} {
		reason := strings.Repeat(part, 64<<10/len(part))
		if n := testing.AllocsPerRun(1, func() { Text(reason) }); n > 1000 {
			t.Errorf("%d bytes of %q took %v allocations", len(reason), part, n)
		}
	}
}

func TestIDs(t *testing.T) {
	id := ID(Text(""))
	if id != "e3b0c44298fc1c14" || !IsID(id) {
		t.Errorf("no reason has the ID %s", id)
	}
	for _, text := range []string{"", "e3b0c44298fc1c1", "e3b0c44298fc1c141", "E3B0C44298FC1C14", "zzb0c44298fc1c14"} {
		if IsID(text) {
			t.Errorf("%q is an ID", text)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, reason := range []string{"", "unknown outcome: x1", "a@b 1.5.\xff", "…:1", "1,1"} {
		f.Add(reason)
	}
	f.Fuzz(func(t *testing.T, reason string) {
		text := Text(reason)
		if !utf8.ValidString(text) || strings.Contains(text, "\n") {
			t.Errorf("%q has the text %q", reason, text)
		}
		if strings.HasPrefix(text, name.UnknownOutcome) != strings.HasPrefix(reason, name.UnknownOutcome) {
			t.Errorf("%q has the text %q", reason, text)
		}
	})
}

func TestGroupsAreCounted(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var g Groups
	g.Add("no customer 1", "mail", at(5))
	g.Add("timed out", "mail", at(1))
	g.Add("no customer 2", "billing", at(3))
	g.Add("no customer 3", "billing", at(9))
	for _, consumer := range []string{"a", "b", "c", "d", "a"} {
		g.Add("", consumer, at(2))
	}
	all := g.Largest()
	if g.Count != 9 || len(all) != 3 || all[0].Text != "" || all[0].Count != 5 || all[0].Consumers != nil {
		t.Fatalf("%d in %+v", g.Count, all)
	}
	if of := all[1]; of.Text != "no customer …" || of.ID != ID(of.Text) || of.Count != 3 || !of.Oldest.Equal(at(3)) || !of.Newest.Equal(at(9)) ||
		!slices.Equal(of.Consumers, []string{"billing", "mail"}) {
		t.Errorf("%+v", of)
	}
	if all[2].Text != "timed out" || all[2].Count != 1 {
		t.Errorf("%+v", all[2])
	}
}
