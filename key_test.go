package once_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/effectively-once/once"
)

func TestKeyStringIsFixedForEver(t *testing.T) {
	// Stored keys and keys sent to other systems depend on these: a change would run all work anew.
	for key, want := range map[once.Key]string{
		{Operation: "pay", ID: "order-1"}:                              "2f5478f2-de66-8775-8d6d-a17f55f2421b",
		{Scope: "tenant-7", Operation: "pay", ID: "order-1"}:           "9c6af8a1-8305-88db-86b4-e6cc8ff812e0",
		{Scope: "tenant-7", Operation: "pay/charge", ID: "bestell-ü€"}: "00772a94-63d5-89c1-8a1c-6887dc76b673",
	} {
		if got := key.String(); got != want {
			t.Errorf("%+v travels as %s, want %s", key, got, want)
		}
	}
}

func TestKeyPartsDoNotRunIntoEachOther(t *testing.T) {
	keys := []once.Key{
		{Scope: "a", Operation: "b", ID: "c"}, {Scope: "", Operation: "ab", ID: "c"}, {Scope: "ab", Operation: "c", ID: ""},
		{Scope: "a", Operation: "bc", ID: ""}, {Scope: "", Operation: "a", ID: "bc"}, {Scope: "a/b", Operation: "c", ID: "d"},
		{Scope: "a", Operation: "b/c", ID: "d"}, {Scope: "\x00", Operation: "a", ID: "b"}, {Scope: "", Operation: "\x00a", ID: "b"},
	}
	seen := map[string]once.Key{}
	for _, key := range keys {
		if other, ok := seen[key.String()]; ok {
			t.Errorf("%+v and %+v are the same", key, other)
		}
		seen[key.String()] = key
	}
}

func TestKeyValidate(t *testing.T) {
	good := []once.Key{
		{Operation: "pay", ID: "1"},
		{Scope: "tenant 7", Operation: "pay/charge", ID: "ünïcode %s ' \" \\"},
		{Scope: strings.Repeat("s", 255), Operation: strings.Repeat("o", 255), ID: strings.Repeat("i", 255)},
	}
	for _, key := range good {
		if err := key.Validate(); err != nil {
			t.Errorf("%+v: %v", key, err)
		}
	}
	bad := map[string]once.Key{
		"ID is empty":         {Operation: "pay"},
		"Operation is empty":  {ID: "1"},
		"empty step":          {Operation: "pay/", ID: "1"},
		"ID has 256 bytes":    {Operation: "pay", ID: strings.Repeat("i", 256)},
		"Scope has 256 bytes": {Scope: strings.Repeat("s", 256), Operation: "pay", ID: "1"},
		"at byte 1":           {Operation: "pay", ID: "a\x00"},
		"at byte 2":           {Operation: "pay", ID: "ab\n"},
		"Operation \"a\\tb\"": {Operation: "a\tb", ID: "1"},
		"at byte 3":           {Operation: "pay", ID: "abc\u0085"},
		"not valid UTF-8":     {Operation: "pay", ID: "\xff"},
	}
	for want, key := range bad {
		err := key.Validate()
		if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want an ErrInvalid with %q", key, err, want)
		}
	}
}

func TestKeyLogsItsReadableParts(t *testing.T) {
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "key", once.Key{Scope: "t7", Operation: "pay", ID: "o1"})
	if !strings.Contains(b.String(), "key.scope=t7 key.operation=pay key.id=o1") {
		t.Error(b.String())
	}
}

func FuzzKey(f *testing.F) {
	f.Add("", "pay", "order-1", "", "pay", "order-2")
	f.Add("a", "b", "c", "", "ab", "c")
	f.Fuzz(func(t *testing.T, s1, o1, i1, s2, o2, i2 string) {
		a, b := once.Key{Scope: s1, Operation: o1, ID: i1}, once.Key{Scope: s2, Operation: o2, ID: i2}
		if (a == b) != (a.String() == b.String()) {
			t.Errorf("%+v and %+v: %s and %s", a, b, a, b)
		}
		if len(a.String()) != 36 {
			t.Errorf("%+v travels as %q", a, a)
		}
		if a.Validate() == nil && (a.ID == "" || a.Operation == "" || len(a.ID) > 255 || strings.ContainsAny(a.ID, "\x00\n\r\x7f")) {
			t.Errorf("%+v is taken for valid", a)
		}
	})
}
