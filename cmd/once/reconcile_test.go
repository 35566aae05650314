//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
)

// What somebody else has decided between the comparison and the yes is left alone, and counted.
func TestKeyDecidedMeanwhileIsLeftAlone(t *testing.T) {
	_, shop := shopFile(t)
	for _, id := range []string{"1", "2", "3"} {
		if err := bring(t.Context(), shop.Store, once.Key{Operation: "charge", ID: id}, once.Unknown); err != nil {
			t.Fatal(err)
		}
	}
	report, err := crosscheck.Read(t.Context(), strings.NewReader("id\n1\n2\n3\n"), crosscheck.Format{}, once.Key{Operation: "charge"})
	if err != nil {
		t.Fatal(err)
	}
	f := &findings{reconcileCommand: &reconcileCommand{Settle: true, Outcome: "none", Reason: "r", Yes: true}, most: 1}
	c := crosscheck.Comparison{Store: shop.Store, Report: report}
	if f.Summary, err = c.Run(t.Context(), f.add); err != nil || len(f.plan) != 3 {
		t.Fatal(len(f.plan), err)
	}
	for i, decide := range []func(once.Record) error{
		func(r once.Record) error { return once.MarkNotDone(t.Context(), shop.Store, r, "somebody else") },
		func(r once.Record) error {
			return once.MarkDone(t.Context(), shop.Store, r, once.Outcome{Body: []byte("1"), ContentType: "application/json"}, "somebody else")
		},
	} {
		if err := decide(f.plan[i].Record); err != nil {
			t.Fatal(err)
		}
	}
	settled, err := f.settle(t.Context(), &session{Target: shop}, "ana", nil)
	var code coded
	if settled != 1 || !errors.As(err, &code) || code.code != exitMoved || !strings.Contains(code.text, "2 of 3 keys changed") {
		t.Errorf("%d settled: %v", settled, err)
	}
	for i, want := range []once.Status{once.Absent, once.Done, once.Done} {
		rec, err := shop.Store.Get(t.Context(), f.plan[i].Record.Key)
		if err != nil || rec.Status != want || rec.Outcome.Omitted != (i == 2) {
			t.Errorf("key %d: %+v, %v", i, rec, err)
		}
	}
}

// More decisions than fit, or an outcome that the store does not keep, are found before anything is changed.
func TestPlanIsLimited(t *testing.T) {
	two := 2
	f := &findings{reconcileCommand: &reconcileCommand{Settle: true, Outcome: "line", maxFlags: maxFlags{Limit: &two}}, most: 3}
	found := crosscheck.Finding{Kind: crosscheck.OpenHere, Record: once.Record{Status: once.Unknown}, Supports: crosscheck.MarkDone,
		Lines: []int{7}, Line: []byte("{}")}
	for range 5 {
		if err := f.add(found); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.plan) != 2 || f.left != 3 {
		t.Errorf("%d planned, %d left", len(f.plan), f.left)
	}
	found.Line = []byte("{  }")
	if err := f.add(found); err == nil || !strings.Contains(err.Error(), "line 7 of the report has 4 bytes as an outcome, the store keeps 3") {
		t.Error(err)
	}
}

// A report that is a pipe is read twice all the same, and leaves no file.
func TestReportFromAPipe(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("id\n1\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	path, err := filepath.EvalSymlinks("/dev/fd")
	if err != nil {
		t.Skip(err)
	}
	flags := reportFlags{Against: filepath.Join(path, fdOf(r))}
	file, closeFile, err := flags.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report, err := crosscheck.Read(t.Context(), file, crosscheck.Format{}, once.Key{Operation: "charge"})
	if err != nil || report.Lines != 1 {
		t.Error(report, err)
	}
	closeFile()
	wantEmpty(t, temp)
}

func TestWordsAreQuotedForAShell(t *testing.T) {
	for text, want := range map[string]string{"order-1": "order-1", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x;`y`": "'$x;`y`'", "é": "'é'"} {
		if got := word(text); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

func fdOf(f *os.File) string { return strconv.Itoa(int(f.Fd())) }
