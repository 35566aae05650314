package natsstore

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once/integration/internal/natswire"
)

// requests returns how many requests were made since the last call, by the kind
// of their subjects.
func requests(w *natswire.Wire) map[string]int {
	n := make(map[string]int)
	for _, subject := range w.Subjects() {
		n[kindOf(subject)]++
	}
	return n
}

// kindOf returns what a request is for.
func kindOf(subject string) string {
	for _, kind := range []string{"STREAM.INFO", "MSG.GET", "MSG.DELETE", ".open.", ".done."} {
		if strings.Contains(subject, kind) {
			return strings.Trim(kind, ".")
		}
	}
	return fmt.Sprintf("%q", subject)
}
