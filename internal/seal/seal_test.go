package seal_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/effectively-once/once/internal/seal"
)

func secret(id string, fill byte) seal.Secret {
	return seal.Secret{ID: id, Bytes: bytes.Repeat([]byte{fill}, 32)}
}

func ring(t testing.TB, secrets ...seal.Secret) *seal.Ring {
	t.Helper()
	r, err := seal.NewRing(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOpensOnlyWhatWasSealedForTheSame(t *testing.T) {
	r := ring(t, secret("a", 1))
	for _, text := range []string{"", "x", "a longer text that fills more than one block of the cipher"} {
		sealed := r.Seal([]byte(text), []byte("here"))
		if got, err := r.Open(sealed, []byte("here")); err != nil || string(got) != text {
			t.Errorf("%q came back as %q, %v", text, got, err)
		}
		if text != "" && bytes.Contains(sealed, []byte(text)) && len(text) > 1 {
			t.Errorf("%q shows", text)
		}
		if _, err := r.Open(sealed, []byte("there")); !errors.Is(err, seal.ErrForged) {
			t.Errorf("in another place: %v", err)
		}
		for i := range sealed { // each bit, and each length
			changed := bytes.Clone(sealed)
			changed[i] ^= 1
			if _, err := r.Open(changed, []byte("here")); err == nil {
				t.Errorf("byte %d of %d was changed, and it opens", i, len(sealed))
			}
			if _, err := r.Open(sealed[:i], []byte("here")); err == nil {
				t.Errorf("cut off after %d of %d bytes, it opens", i, len(sealed))
			}
		}
	}
}

func TestOlderSecretsOpenAndTheFirstSeals(t *testing.T) {
	old := ring(t, secret("old", 1))
	both := ring(t, secret("new", 2), secret("old", 1))
	young := ring(t, secret("new", 2))
	before, after := old.Seal([]byte("text"), nil), both.Seal([]byte("text"), nil)
	for name, can := range map[string]struct {
		ring   *seal.Ring
		sealed []byte
		want   error
	}{
		"both open old":      {both, before, nil},
		"both open new":      {both, after, nil},
		"new opens new":      {young, after, nil},
		"new opens no old":   {young, before, seal.ErrKey},
		"old opens no new":   {old, after, seal.ErrKey},
		"nothing opens":      {nil, after, seal.ErrKey},
		"other bytes, same":  {ring(t, secret("old", 9)), before, seal.ErrKey},
		"nothing was sealed": {both, []byte("plain"), seal.ErrForged},
	} {
		if _, err := can.ring.Open(can.sealed, nil); !errors.Is(err, can.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every text has a salt of its own, and so a key of its own: that is what puts the bound of random nonces out of reach.
func TestEachTextHasItsOwnKey(t *testing.T) {
	r := ring(t, secret("a", 1))
	const head = 2 + 1 + 4
	seen := make(map[string]bool)
	for range 1000 {
		sealed := r.Seal([]byte("same"), nil)
		if salt := string(sealed[head : head+24]); seen[salt] {
			t.Fatal("two texts have one salt")
		} else {
			seen[salt] = true
		}
		if tail := string(sealed[head+24:]); seen[tail] {
			t.Fatal("two equal texts look equal")
		} else {
			seen[tail] = true
		}
	}
}

func TestRingRefusesWhatIsNoSecret(t *testing.T) {
	for name, secrets := range map[string][]seal.Secret{
		"none":           {},
		"short":          {{ID: "a", Bytes: make([]byte, 31)}},
		"no id":          {{Bytes: make([]byte, 32)}},
		"id with space":  {{ID: "a b", Bytes: make([]byte, 32)}},
		"twice":          {secret("a", 1), secret("a", 2)},
		"zero not first": {secret("a", 1), {}},
	} {
		if _, err := seal.NewRing(secrets...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	opens := ring(t, seal.Secret{}, secret("a", 1))
	if opens.Seals() {
		t.Error("a ring that begins with the zero Secret seals")
	}
	if got, err := opens.Open(ring(t, secret("a", 1)).Seal([]byte("x"), nil), nil); err != nil || string(got) != "x" {
		t.Errorf("it opens nothing: %q %v", got, err)
	}
}

func TestPartsNeverRunIntoEachOther(t *testing.T) {
	for _, parts := range [][][]byte{{}, {nil}, {[]byte("a"), nil, []byte("bc")}, {make([]byte, 300), []byte("x")}} {
		got, err := seal.Split(seal.Join(parts...))
		if err != nil || len(got) != len(parts) {
			t.Fatalf("%q came back as %q, %v", parts, got, err)
		}
		for i := range parts {
			if !bytes.Equal(got[i], parts[i]) {
				t.Errorf("%q came back as %q", parts, got)
			}
		}
	}
	if bytes.Equal(seal.Join([]byte("ab"), []byte("c")), seal.Join([]byte("a"), []byte("bc"))) {
		t.Error("different parts look the same")
	}
	if _, err := seal.Split([]byte{5, 'x'}); err == nil {
		t.Error("parts that are cut off were read")
	}
}

func BenchmarkSeal(b *testing.B) {
	r := ring(b, secret("a", 1))
	text := make([]byte, 300)
	for b.Loop() {
		r.Seal(text, text[:24])
	}
}

func BenchmarkOpen(b *testing.B) {
	r := ring(b, secret("a", 1))
	sealed := r.Seal(make([]byte, 300), nil)
	for b.Loop() {
		if _, err := r.Open(sealed, nil); err != nil {
			b.Fatal(err)
		}
	}
}
