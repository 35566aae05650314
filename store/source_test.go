package store

import (
	"strings"
	"testing"
)

func TestASourceIsReadAsItWasWritten(t *testing.T) {
	for _, name := range []string{"rabbitmq queue orders", "queue [a]", "queue []", "queue [a=b]", "queue [a=b] []", "[", " []", "a [%zz]", "ä b"} {
		for _, facts := range []map[string]string{nil, {"vhost": "/"}, {"vhost": "a ] [b", "cluster": "c&d=e"}, {"cluster": ""}} {
			text := SourceText(name, facts)
			got, told := SplitSource(text)
			if got != name {
				t.Errorf("%q was read as the name %q", text, got)
			}
			for fact, value := range facts {
				if told[fact] != value {
					t.Errorf("%q was read with %s=%q, want %q", text, fact, told[fact], value)
				}
			}
		}
	}
	if got := SourceText("orders", map[string]string{"cluster": "shop", "vhost": "/"}); got != "orders [cluster=shop&vhost=%2F]" {
		t.Error(got)
	}
	if long := strings.Repeat("x", 255); SourceText(long, map[string]string{"cluster": "shop"}) != long {
		t.Error("a text is longer than a store keeps")
	}
}

func TestSourcesDifferInWhatBothTell(t *testing.T) {
	for _, test := range []struct {
		a, b, both string
		ok         bool
	}{
		{"q", "q", "q", true},
		{"q", "r", "", false},
		{"q [x=1]", "q", "q [x=1]", true},
		{"q [x=1]", "q [x=1]", "q [x=1]", true},
		{"q [x=1]", "q [x=2]", "", false},
		{"q [x=1]", "r [x=1]", "", false},
		{"q [x=1]", "q [y=2]", "q [x=1&y=2]", true},
		{"q [x=1&y=2]", "q [x=1&y=3]", "", false},
		{"q [a] []", "q [a] [x=1]", "q [a] [x=1]", true},
	} {
		for range 2 {
			if both, ok := MatchSource(test.a, test.b); both != test.both || ok != test.ok {
				t.Errorf("MatchSource(%q, %q) = %q, %v, want %q, %v", test.a, test.b, both, ok, test.both, test.ok)
			}
			test.a, test.b = test.b, test.a
		}
	}
}
