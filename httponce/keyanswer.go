package httponce

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/effectively-once/once"
)

const maxProblem = 8 << 10 // bytes of a problem document that are read

// noteKeyAnswer reports what a response says about its key to the claim that the
// request was made under. It reads a problem document and puts it back.
func noteKeyAnswer(req *http.Request, resp *http.Response) {
	if resp == nil || req.Header.Get(KeyHeader) == "" {
		return
	}
	if _, claimed := once.ClaimFrom(req.Context()); !claimed {
		return
	}
	if strings.EqualFold(resp.Header.Get(ReplayedHeader), "true") {
		once.NoteKeyAnswer(req.Context(), once.KeyReplayed, nil)
		return
	}
	if resp.StatusCode != http.StatusUnprocessableEntity && resp.StatusCode != http.StatusConflict {
		return
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "application/problem+json" || resp.Body == nil {
		return
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	rest := resp.Body
	resp.Body = joined{io.MultiReader(bytes.NewReader(head), brokenOff{err}, rest), rest}
	var problem struct{ Type, Title string }
	if json.Unmarshal(head, &problem) == nil && strings.HasSuffix(problem.Type, "#"+problemMismatch.name) {
		once.NoteKeyAnswer(req.Context(), once.KeyConflict, errors.New(req.Method+" "+req.URL.Host+": "+problem.Title))
	}
}

// brokenOff returns the error of a body that broke off, or io.EOF.
type brokenOff struct{ err error }

func (f brokenOff) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}
