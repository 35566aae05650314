package janitor

import (
	"fmt"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// Scopes that have got no new keys since the last count take no memory but that of the count.
func TestAccountsGo(t *testing.T) {
	q := &Quota{Store: memstore.New(nil), Limit: Limit{Keys: 1}}
	count := func() {
		t.Helper()
		if err := q.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		leave, _ := q.Admit(once.Key{Scope: fmt.Sprint(i), Operation: "pay", ID: "1"})
		if i > 0 {
			leave(i%2 == 0)
		}
		q.Admit(once.Key{Scope: fmt.Sprint(i), Operation: "pay", ID: "2"})
	}
	if len(q.accounts) != 100 {
		t.Fatalf("there are %d accounts: that forces nothing", len(q.accounts))
	}
	for key, a := range q.open {
		if key.ID == "2" {
			q.leave(key, a, false)
		}
	}
	count()
	if len(q.accounts) != 1 || q.accounts["0"] == nil || len(q.open) != 1 {
		t.Errorf("%d accounts and %d keys under way are left, want those of the one that is under way", len(q.accounts), len(q.open))
	}
}
