package crosscheck

import (
	"testing"
	"time"

	"github.com/effectively-once/once"
)

// What a report lacks means something only if the report covers all of the time
// in which it can have happened.
func TestPeriodOfTheReport(t *testing.T) {
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	rec := func(is once.Status, created, updated int) once.Record {
		r := once.Record{Status: is, Attempt: 1, Created: at(created), Updated: at(updated)}
		if is == once.Unknown { // as read at 13:00, its lease lapsed ten minutes after the last change
			r.Age = at(60).Sub(r.Created)
			r.LeaseLeft = -(at(60).Sub(r.Updated) - 10*time.Minute)
		}
		return r
	}
	outside := Kind(-1)
	for _, test := range []struct {
		name     string
		rec      once.Record
		want     Kind
		supports Decision
	}{
		{"done inside", rec(once.Done, 10, 11), NotThere, None},
		{"done before it", rec(once.Done, -9, -6), outside, None},
		{"done shortly before it", rec(once.Done, -9, -4), Undecided, None},
		{"done after its beginning, claimed shortly after it", rec(once.Done, 4, 11), Undecided, None},
		{"done at its end", rec(once.Done, 20, 26), Undecided, None},
		{"done after its end", rec(once.Done, 20, 31), Undecided, None},
		{"claimed after its end", rec(once.Done, 36, 37), outside, None},
		{"claimed before it, done after it", rec(once.Done, -20, 50), Undecided, None},
		{"expired inside", rec(once.Expired, 10, 11), NotThere, None},
		{"running", rec(once.Running, -20, 11), Undecided, None},
		{"running since after its end", rec(once.Running, 40, 40), outside, None},
		{"unknown inside", rec(once.Unknown, 5, 15), OpenNotThere, MarkNotDone},
		{"unknown, can have arrived after its end", rec(once.Unknown, 5, 16), Undecided, None},
		{"unknown, can have arrived before its beginning", rec(once.Unknown, 4, 10), Undecided, None},
		{"parked inside", rec(once.Parked, 5, 25), OpenNotThere, MarkNotDone},
		{"free", rec(once.Absent, 5, 25), outside, None},
	} {
		r := comparing{Comparison: Comparison{Since: at(0), Until: at(30), Margin: 5 * time.Minute}}
		f, covered := r.lacking(test.rec)
		if !covered {
			f.Kind = outside
		}
		if f.Kind != test.want || f.Supports != test.supports {
			t.Errorf("%s: %v and decision %d, want %v and %d", test.name, f.Kind, f.Supports, test.want, test.supports)
		}
		if r.Until = (time.Time{}); true {
			if f, _ := r.lacking(test.rec); f.Supports != None {
				t.Errorf("%s: without an end, the report supports a decision", test.name)
			}
		}
	}

	// If it is not known since when a record is unknown, it may have ended just now.
	r := comparing{Comparison: Comparison{Since: at(0), Until: at(30)}}
	lately := rec(once.Unknown, 5, 15)
	lately.LeaseLeft = 0
	if f, _ := r.lacking(lately); f.Kind != Undecided {
		t.Errorf("unknown since an unknown time: %v", f.Kind)
	}
}

func TestReportsThatMustFreeNothing(t *testing.T) {
	c := Comparison{Report: &Report{}, Since: time.Unix(1, 0), Until: time.Unix(2, 0)}
	right := Summary{Known: 1}
	if err := c.MayFree(right); err != nil {
		t.Error(err)
	}
	for name, s := range map[string]Summary{"nothing in common": {}, "a key that is not known": {Known: 1, Foreign: 1}} {
		if c.MayFree(s) == nil {
			t.Errorf("%s: it may", name)
		}
	}
	c.Report.Skipped = 1
	if c.MayFree(right) == nil {
		t.Error("a line without an ID: it may")
	}
	c.Report.Skipped, c.Since = 0, time.Time{}
	if c.MayFree(right) == nil {
		t.Error("without a beginning: it may")
	}
}
