package inbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
)

// row is a projection with a version.
type row struct{ version int64 }

func (r *row) apply(v inbox.Versions, got int64) (bool, error) {
	written := false
	err := v.Apply(got, func(from, to int64) (bool, error) {
		if written = from <= r.version && r.version <= to; written {
			r.version = got
		}
		return written, nil
	}, func() (int64, error) { return r.version, nil })
	return written, err
}

func TestVersions(t *testing.T) {
	for _, test := range []struct {
		name    string
		onGap   inbox.OnGap
		have    int64
		got     int64
		written bool
		after   time.Duration
		retry   bool
	}{
		{"next", inbox.Wait, 4, 5, true, 0, false},
		{"first", inbox.Wait, 0, 1, true, 0, false},
		{"same", inbox.Wait, 5, 5, false, 0, false},
		{"stale", inbox.Wait, 5, 3, false, 0, false},
		{"stale, applying", inbox.Apply, 5, 3, false, 0, false},
		{"gap, waiting", inbox.Wait, 3, 5, false, time.Second, true},
		{"gap, halting", inbox.Halt, 3, 5, false, 0, false},
		{"gap, applying", inbox.Apply, 3, 5, true, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &row{version: test.have}
			written, err := r.apply(inbox.Versions{OnGap: test.onGap, Every: time.Second}, test.got)
			after, retry := once.MayRetry(err)
			fails := test.have+1 < test.got && test.onGap != inbox.Apply
			if written != test.written || (err != nil) != fails || after != test.after || retry != test.retry {
				t.Errorf("written %v, %v (retry %v %v)", written, err, after, retry)
			}
			if r.version < test.have {
				t.Errorf("it went back from %d to %d", test.have, r.version)
			}
		})
	}
	broken := errors.New("broken")
	fail := func(int64, int64) (bool, error) { return false, broken }
	if err := (inbox.Versions{}).Apply(1, fail, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
	none := func(int64, int64) (bool, error) { return false, nil }
	if err := (inbox.Versions{}).Apply(1, none, func() (int64, error) { return 0, nil }); err == nil {
		t.Error("an event that found no row to write to was dropped")
	}
}
