package sqlschema

import (
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestHeadersComeBackAsTheyWere(t *testing.T) {
	random := func() string {
		b := make([]byte, rand.IntN(4))
		for i := range b {
			b[i] = byte(rand.IntN(256))
		}
		return string(b)
	}
	for range 2000 {
		want := make(map[string]string)
		for range rand.IntN(4) {
			want[random()] = random()
		}
		text, err := EncodeHeader(want)
		got, errBack := DecodeHeader(text)
		if err != nil || errBack != nil || !maps.Equal(got, want) || strings.ContainsRune(text, 0) {
			t.Fatalf("%q became %q, by %q, %v, %v", want, got, text, err, errBack)
		}
	}
	for _, text := range []string{"x", `{"base64":{"?":""}}`} {
		if got, err := DecodeHeader(text); err == nil {
			t.Errorf("%q was read as %q", text, got)
		}
	}
}

func TestTimesComeBackAsTheyWere(t *testing.T) {
	for _, want := range []time.Time{{}, time.Unix(0, 1), time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.FixedZone("", -12*3600))} {
		got, err := DecodeTime(EncodeTime(want))
		if err != nil || !got.Equal(want) {
			t.Errorf("%v became %v, %v", want, got, err)
		}
	}
}
