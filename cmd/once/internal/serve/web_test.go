package serve

import (
	"sync"
	"testing"
)

// However many ask at once, the database is looked at once.
func TestScrapesShareALook(t *testing.T) {
	_, at := shop(t)
	l := &lookout{target: at}
	looks := make([]sighting, 50)
	var all sync.WaitGroup
	for i := range looks {
		all.Go(func() { looks[i] = l.see() })
	}
	all.Wait()
	different := make(map[int64]bool)
	for _, look := range looks {
		if look.err == nil {
			t.Fatal("there are no tables, and they fit")
		}
		different[look.at.UnixNano()] = true
	}
	if len(different) > 2 { // a second one, should all of it take that long
		t.Errorf("%d looks for %d scrapes", len(different), len(looks))
	}
}
