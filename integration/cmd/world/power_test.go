package main

import (
	"testing"

	"github.com/effectively-once/once/integration/world"
)

func TestAWorldThatEndsItsProcessHasFoundTheBug(t *testing.T) {
	for what, c := range map[string]struct {
		out  string
		exit int
		n    int
		law  string
		bad  bool
	}{
		"a law is broken":     {out: "begins 1\nbegins 2\nseeds 2 law lease,protocol\n", exit: 1, n: 2, law: "lease,protocol"},
		"all is well":         {out: "begins 1\nbegins 2\nseeds 2\n", n: 2},
		"the process panics":  {out: "begins 1\nbegins 2\npanic: at the disco\n", exit: crashExit, n: 2, law: crashed},
		"it ends without one": {out: "begins 1\n", exit: crashExit, n: 1, law: crashed},
		"it hangs":            {out: "begins 1\nbegins 2\nbegins 3\n", exit: world.StallExit, n: 3, law: stalled},
		"no world begins":     {out: "", exit: crashExit, bad: true},
		"it is killed":        {out: "begins 1\n", exit: -1, bad: true},
	} {
		t.Run(what, func(t *testing.T) {
			n, law, err := readBrief(c.out, c.exit)
			if n != c.n && !c.bad || law != c.law || (err != nil) != c.bad {
				t.Errorf("read %d, %q, %v", n, law, err)
			}
		})
	}
}
