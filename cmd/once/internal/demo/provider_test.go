package demo

import "testing"

func TestProvider(t *testing.T) {
	p, err := newProvider()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	shop := &Shop{provider: p.url, at: func(point) {}}
	o := Order{ID: "order-1", Cents: 4999}
	charge := func(key string) Receipt {
		t.Helper()
		r, err := shop.charge(t.Context(), key, o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	if first, second := charge("k"), charge("k"); first != second || first.ChargeID == "" || len(p.charged(o.ID)) != 1 {
		t.Errorf("one key: %v and %v, %d charges", first, second, len(p.charged(o.ID)))
	}
	if first, second := charge(""), charge(""); first == second || len(p.charged(o.ID)) != 3 {
		t.Errorf("no key: %v and %v, %d charges", first, second, len(p.charged(o.ID)))
	}
	o.Cents = 1
	if _, err := shop.charge(t.Context(), "k", o); err == nil || len(p.charged(o.ID)) != 3 {
		t.Errorf("the key of another charge was taken: %v", err)
	}
}
