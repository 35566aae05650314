package doctor

import (
	"context"
	"net/url"
	"strings"
)

// azureTable looks at the address of a table. That the table is there, the clock's
// check has found out.
func azureTable(_ context.Context, e *examination) error {
	u, err := url.Parse(e.String())
	if err == nil && strings.Contains(u.Hostname(), "-secondary.") {
		e.found("replica", Unsafe, "The URL is that of the secondary endpoint.", "It answers from the past, and takes no writes.",
			"Give the URL of the primary endpoint, also to your programs.")
	}
	return err
}
