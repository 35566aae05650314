package serve

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/target"
)

// However many ask at once, the database is looked at once.
func TestScrapesShareALook(t *testing.T) {
	shop, err := target.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "shop.db"), &target.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer shop.Close()
	l := &lookout{target: shop}
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
