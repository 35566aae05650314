package doctor

import (
	"slices"
	"testing"
)

func TestSources(t *testing.T) {
	for set, want := range map[string][]string{
		"": nil, "0-1-100": {"1"}, "0-1-100,0-2-7": {"1", "2"}, "0-1-100,1-1-7": {"1"},
		"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5": {"3e11fa47-71ca-11e1-9e33-c80aa9429562"},
		"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7,\n4e11fa47-71ca-11e1-9e33-c80aa9429562:1-5": {
			"3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"},
	} {
		if got := sources(set); !slices.Equal(got, want) {
			t.Errorf("%q has %v, want %v", set, got, want)
		}
	}
}

func TestSemiSync(t *testing.T) {
	for _, test := range []struct {
		enabled, status, point string
		waits                  bool
	}{
		{"ON", "ON", "AFTER_SYNC", true}, {"ON", "ON", "", true}, {"on", "on", "after_sync", true},
		{"OFF", "OFF", "AFTER_SYNC", false}, {"ON", "OFF", "AFTER_SYNC", false}, {"ON", "ON", "AFTER_COMMIT", false}, {"", "", "", false},
	} {
		for _, side := range []string{"source", "master"} {
			variables, status := map[string]string{}, map[string]string{"rpl_semi_sync_" + side + "_status": test.status}
			if test.enabled != "" {
				variables["rpl_semi_sync_"+side+"_enabled"] = test.enabled
			}
			if test.point != "" {
				variables["rpl_semi_sync_"+side+"_wait_point"] = test.point
			}
			if what, waits := semiSync(variables, status); waits != test.waits || waits == (what != "") {
				t.Errorf("%+v: %q %v", test, what, waits)
			}
		}
	}
}
