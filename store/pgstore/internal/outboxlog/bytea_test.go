package outboxlog

import "testing"

func TestBytesAreReadAsTheServerWritesThem(t *testing.T) {
	for text, want := range map[string]string{
		`\x`: "", `\x00ff5c`: "\x00\xff\\", ``: "", `plain`: "plain", `a\\b\000\377'`: "a\\b\x00\xff'", `\\x41`: `\x41`,
	} {
		if got, err := ReadBytea([]byte(text)); err != nil || string(got) != want {
			t.Errorf("%s is read as %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`\x0`, `\xzz`, `\`, `\12`, `\400`, `\abc`} {
		if got, err := ReadBytea([]byte(text)); err == nil {
			t.Errorf("%s is read as %q, want an error", text, got)
		}
	}
	if got, err := ReadBytea(nil); got != nil || err != nil {
		t.Errorf("NULL is read as %q, %v", got, err)
	}
}
