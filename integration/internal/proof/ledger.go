package proof

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Settled waits until no message is open, so that it can be judged which ones are
// lost and which ones were doubled. A message that is still open after that time
// may yet arrive, so the test then fails without calling it lost. open returns a
// description of each open message or group of messages.
func Settled(t testing.TB, within time.Duration, open func() []string) {
	t.Helper()
	deadline := time.After(within)
	for pause := 5 * time.Millisecond; ; pause = min(pause*11/10, 100*time.Millisecond) {
		left := open()
		if len(left) == 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Fatalf("could not be checked in time: after %v, this is open, and neither lost nor handled: %s", within, few(left))
		}
	}
}

// few joins some of the texts.
func few(texts []string) string {
	text := strings.Join(texts[:min(len(texts), 10)], ", ")
	if more := len(texts) - 10; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
