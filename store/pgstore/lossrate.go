package pgstore

import "sync/atomic"

// lossRate is how often speculative claims were lost lately. A lost one costs several times what a look beforehand does,
// and a look is in vain where the key is new: it pays where more than one in eight is a duplicate.
type lossRate struct{ lost atomic.Int32 } // of all, in parts of allLost

const allLost, memory = 1 << 16, 16 // memory: how many claims it takes to forget most of those before

func (l *lossRate) high() bool { return l.lost.Load() > allLost/8 }

// count need not be exact: one of two that come at once may be overlooked.
func (l *lossRate) count(lost bool) {
	was := l.lost.Load()
	now := was - was/memory
	if lost {
		now += allLost / memory
	}
	l.lost.Store(now)
}
