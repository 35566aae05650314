package httpclients_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// TestCurl uses curl: both forms of the key, HTTP/1.0, a body that waits for
// 100 Continue, chunks, and retries.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed")
	}
	p := new(payments)
	var runs atomic.Int64
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "run %d, %d bytes", runs.Add(1), len(body))
	})
	guarded := httponce.Handler(memstore.New(nil), account, echo, &httponce.Options{Required: true, MaxBody: 2 << 20})
	server := httptest.NewServer(p.lossy(guarded))
	defer server.Close()
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), curl, append([]string{"-sS", "-m", "30", "-w", "|%{http_code}|%header{idempotent-replayed}", "-H", "Authorization: Bearer a", server.URL}, args...)...).Output()
		if err != nil {
			t.Errorf("curl %v: %v", args, err)
		}
		return string(out)
	}
	want := func(got, want string) {
		t.Helper()
		if !strings.HasPrefix(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	quoted, bare := []string{"-H", `Idempotency-Key: "k"`, "-d", "a=1"}, []string{"-H", "Idempotency-Key: k", "-d", "a=1"}
	want(run(quoted...), "run 1, 3 bytes|200|")
	want(run(bare...), "run 1, 3 bytes|200|")
	want(run(append(bare, "-0")...), "run 1, 3 bytes|200|")
	want(run(append(bare, "-H", "Transfer-Encoding: chunked")...), "run 1, 3 bytes|200|")
	if got := run("-d", "a=1"); !strings.Contains(got, "#key-missing") || !strings.Contains(got, "|400|") {
		t.Errorf("no key: %s", got)
	}
	if got := run("-H", "Idempotency-Key: k", "-H", "Idempotency-Key: k", "-d", "a=1"); !strings.Contains(got, "#key-malformed") {
		t.Errorf("two keys: %s", got)
	}
	if got := run("-H", "Idempotency-Key: k", "-d", "a=2"); !strings.Contains(got, "|422|") {
		t.Errorf("another body: %s", got)
	}
	large := filepath.Join(t.TempDir(), "large")
	writeFile(t, large, strings.Repeat("x", 1<<20+1))
	want(run("-H", "Idempotency-Key: large", "-H", "Expect: 100-continue", "--data-binary", "@"+large), "run 2, 1048577 bytes|200|")
	p.lose.Store(2)
	want(run("-H", "Idempotency-Key: lossy", "-d", "a=1", "--retry", "3", "--retry-all-errors", "--retry-delay", "1"), "run 3, 3 bytes|200|")
	if runs.Load() != 3 {
		t.Errorf("%d runs", runs.Load())
	}
}
