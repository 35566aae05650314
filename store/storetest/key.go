package storetest

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once"
)

func keyRules() []rule {
	return []rule{
		{"key/never-seen", "Get returns the zero Record if the key was never seen.", keyNeverSeen},
		{"key/parts-are-kept-apart",
			"The three parts of a key never run into each other.",
			keyPartsAreKeptApart},
		{"key/every-byte-counts",
			"Keys are equal only if they are equal byte by byte, and are returned as they were given.",
			keyEveryByteCounts},
		{"key/no-weak-digest",
			"Keys with the same weak digest are different keys.",
			keyNoWeakDigest},
		{"key/full-length",
			"Each part of a key may have 255 bytes, and the last byte counts.",
			keyFullLength},
	}
}

func keyNeverSeen(b *bench) {
	for _, s := range b.stores {
		rec, err := s.Get(b, b.key("never"))
		b.must("Get", err)
		if !isZero(rec) {
			b.failf("Get of a key that was never seen returned %s", show(rec))
		}
	}
}

func keyPartsAreKeptApart(b *bench) {
	op := b.key("").Operation
	b.allDifferent([]once.Key{
		{Scope: "", Operation: op, ID: "ab"},
		{Scope: "a", Operation: op, ID: "b"},
		{Scope: "ab", Operation: op, ID: "b"},
		{Scope: "a", Operation: op + "b", ID: "b"},
		{Scope: "", Operation: op + "a", ID: "b"},
		{Scope: "a", Operation: op, ID: "bb"},
		{Scope: "", Operation: op, ID: "a/b"},
		{Scope: "", Operation: op + "/a", ID: "b"},
		{Scope: "a/" + op, Operation: "b", ID: b.run},
		{Scope: "a", Operation: op + "/b", ID: b.run},
		{Scope: op, Operation: "x", ID: b.run},
		{Scope: "x", Operation: op, ID: b.run},
		{Scope: op, Operation: b.run, ID: "x"},
		{Scope: b.run, Operation: op, ID: "x"},
		{Scope: op, Operation: "x:y", ID: b.run},
		{Scope: op + ":x", Operation: "y", ID: b.run},
		{Scope: op, Operation: "x", ID: "y:" + b.run},
	})
}

func keyEveryByteCounts(b *bench) {
	ids := []string{
		"a", "A", "a ", " a", "a  ", " ", "á", "a\u0301", "ß", "ss", "SS", "ı", "i", "I", "İ", "ﬁ", "fi",
		"1", "01", "1.0", "1e0", "١", "null", "NULL", "true", "'", "''", `"`, "`", `\`, `\\`, `\'`, "%", "%%", "_", "a_", "a%",
		"?", "$1", ":1", "@p1", ";--", "/", "a/b", "a\u00a0", "\u200b", "a\u200b", "\ufeffa", "日本", "日本 ", "𝒳", "{}", "[]", "&", "&amp;", "+", "a+b", "a b",
	}
	var keys []once.Key
	for _, id := range ids {
		k := b.key(id)
		keys = append(keys, k, once.Key{Scope: id, Operation: k.Operation, ID: "id"}, once.Key{Operation: k.Operation + "." + id + ".", ID: "id"})
	}
	b.allDifferent(keys)
}

// Among these are pairs with the same Adler-32, the same CRC-32, or the same
// sum of bytes, with any text before and after them.
func keyNoWeakDigest(b *bench) {
	var keys []once.Key
	for _, id := range []string{"aca", "bab", "1311", "2121", "caa", "abc", "cba", "plumless", "buckeroo"} {
		keys = append(keys, b.key(id))
	}
	b.allDifferent(keys)
}

func keyFullLength(b *bench) {
	fill := func(start, end string) string { return start + strings.Repeat("x", 255-len(start)-len(end)) + end }
	op := b.key("").Operation
	multi := strings.Repeat("€", 85)
	b.allDifferent([]once.Key{
		{Scope: fill("", "1"), Operation: fill(op, "1"), ID: fill("", "1")},
		{Scope: fill("", "2"), Operation: fill(op, "1"), ID: fill("", "1")},
		{Scope: fill("", "1"), Operation: fill(op, "2"), ID: fill("", "1")},
		{Scope: fill("", "1"), Operation: fill(op, "1"), ID: fill("", "2")},
		{Scope: multi, Operation: op, ID: multi},
	})
}

// allDifferent claims each key once. If a store confuses two keys, the second
// is taken.
func (b *bench) allDifferent(keys []once.Key) {
	for i, k := range keys {
		if err := k.Validate(); err != nil {
			b.failf("a case has a key that can never arrive: %v", err)
		}
		r := b.request(k, fmt.Sprint(i), long)
		if rec := b.claim(r); rec.Status != once.Running || rec.Attempt != 1 || rec.Owner != r.Owner {
			b.failf("the key %+q was free, and its claim returned %s of %+q", k, show(rec), rec.Key)
		}
	}
	for i, k := range keys {
		if rec := b.wantStatus(k, once.Running); rec.Key != k || rec.Owner != b.token(fmt.Sprint(i)) {
			b.failf("the key %+q came back as %s of %+q", k, show(rec), rec.Key)
		}
	}
}
