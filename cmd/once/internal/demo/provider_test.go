package demo

import (
	"testing"

	"github.com/effectively-once/once/broker"
)

// calmly asks nobody.
func calmly(point, string, Order, *broker.Message) bool { return false }

func TestProvider(t *testing.T) {
	p, err := newProvider()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	shop := &Shop{provider: p.url, ask: calmly}
	o := Order{ID: "order-1", Cents: 4999}
	charge := func(key string) Receipt {
		t.Helper()
		r, err := shop.charge(t.Context(), key, o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	charged := func() int {
		charges, _ := p.made()
		return charges[o.ID]
	}

	if first, second := charge("k"), charge("k"); first != second || first.ChargeID == "" || charged() != 1 {
		t.Errorf("one key: %v and %v, %d charges", first, second, charged())
	}
	if first, second := charge(""), charge(""); first == second || charged() != 3 {
		t.Errorf("no key: %v and %v, %d charges", first, second, charged())
	}
	o.Cents = 1
	if _, err := shop.charge(t.Context(), "k", o); err == nil || charged() != 3 {
		t.Errorf("the key of another charge was taken: %v", err)
	}
	for range 2 {
		if err := shop.letter(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if _, letters := p.made(); letters[o.ID] != 2 {
		t.Errorf("%d letters, want 2: the mail server knows no keys", letters[o.ID])
	}
}
