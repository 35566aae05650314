//go:build linux

package killproof

import (
	"slices"
	"testing"
)

// The units 0, 5 and 10 are of one line, and were committed in another order.
func someLedger() ledger {
	l := ledger{made: map[string][]string{"k0": {"5 a", "0 b", "10 c"}}, handled: make(map[string][]string), told: []int{0, 5}}
	for _, entry := range l.made["k0"] {
		u, attempt := madeBy(entry)
		for _, m := range u.messages(attempt) {
			l.prints = append(l.prints, print{m.ID, m.OrderingKey, string(m.Body), "7"})
			l.handled["k0"] = append(l.handled["k0"], m.ID)
		}
	}
	return l
}

func TestEachWrongIsFound(t *testing.T) {
	for what, spoil := range map[string]func(*ledger){
		wrongAgain:  func(l *ledger) { l.made["k0"] = append(l.made["k0"], "5 a") },
		wrongDoomed: func(l *ledger) { l.made["k4"] = []string{"4 a"} },
		wrongUndone: func(l *ledger) { l.told = append(l.told, 15) },
		wrongLost:   func(l *ledger) { l.prints = l.prints[1:] },
		wrongUncommitted: func(l *ledger) {
			of := l.prints[0]
			of.body = "k0/d" // another attempt
			l.prints = append(l.prints, of)
		},
		wrongChanged: func(l *ledger) {
			again := l.prints[0]
			again.seq = "8"
			l.prints = append(l.prints, again)
		},
		wrongOrder:     func(l *ledger) { slices.Reverse(l.prints) },
		wrongHandled:   func(l *ledger) { l.handled["k0"] = append(l.handled["k0"], "5-0") },
		wrongUnhandled: func(l *ledger) { l.handled["k0"] = l.handled["k0"][1:] },
	} {
		l := someLedger()
		spoil(&l)
		v := l.judge()
		if len(v.wrong[what]) == 0 {
			t.Errorf("it is not found that %s: %v", what, v)
		}
		if mayPass := what == wrongLost || what == wrongUnhandled; mayPass != (len(v.lasting()) == 0) {
			t.Errorf("what stays wrong if %s: %v", what, v.lasting())
		}
	}
}

func TestWhatIsPublishedAgainIsNotWrong(t *testing.T) {
	l := someLedger()
	l.prints = append(l.prints, l.prints[0])
	if v := l.judge(); len(v.wrong) > 0 || len(v.doubled) != 1 {
		t.Errorf("the verdict is %v", v)
	}
}
