package tablestore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
)

// Limits of an entity group transaction.
const (
	maxActions = 100
	maxRequest = 4 << 20
)

// result is the answer to one action of a transaction that was applied.
type result struct{ tag azcore.ETag }

// actionError says which action of a transaction was refused. Nothing was
// applied.
type actionError struct {
	at      int // among the actions; -1: the service does not say
	status  int
	code    string
	message string
	mine    bool // the action is that of a row
}

func (e *actionError) Error() string {
	return fmt.Sprintf("tablestore: action %d of the transaction was refused, and nothing was applied: %s (%s, %d)", e.at, e.message, e.code,
		e.status)
}

// submit sends rows, and then the actions of a user, as one transaction. If the
// index entity of a row is gone, because it was deleted by hand, it does without.
func (e *engine) submit(ctx context.Context, rows []write, others []aztables.TransactionAction) (results []result, err error) {
	for {
		r, results := e.send(ctx, rows, others)
		var refused *actionError
		if errors.As(r.err, &refused) && refused.status == http.StatusNotFound && dropIndex(rows, refused.at) {
			continue
		}
		if r.err != nil && r.busy {
			return nil, &busyError{r.err}
		}
		return results, r.err
	}
}

// busyError is an error after the service refused an earlier try as too busy, so
// that it may be about a transaction that this try finds applied.
type busyError struct{ error }

func (b *busyError) Unwrap() error { return b.error }

// dropIndex removes the index action at a place among all actions, if it is one
// that deletes.
func dropIndex(rows []write, at int) bool {
	n := len(rows)
	for i := range rows {
		if rows[i].index == nil {
			continue
		}
		if n == at && rows[i].index.ActionType == aztables.TransactionTypeDelete {
			rows[i].index = nil
			return true
		}
		n++
	}
	return false
}

// send sends a transaction once: rows, then their index entities, then the
// others.
func (e *engine) send(ctx context.Context, rows []write, others []aztables.TransactionAction) (reply, []result) {
	var actions []aztables.TransactionAction
	for _, w := range rows {
		actions = append(actions, w.row)
	}
	for _, w := range rows {
		if w.index != nil {
			actions = append(actions, *w.index)
		}
	}
	mine := len(actions)
	actions = append(actions, others...)
	r := e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.SubmitTransaction(ctx, actions, nil)
		return err
	})
	if r.raw == nil || r.raw.StatusCode != http.StatusAccepted {
		return r, nil
	}
	results, err := readResults(r.raw, len(actions))
	var refused *actionError
	if errors.As(err, &refused) {
		refused.mine = refused.at >= 0 && refused.at < mine
	}
	r.err = err
	return r, results
}

// readResults reads the answers to a transaction, which the client does not
// return.
func readResults(raw *http.Response, actions int) (results []result, err error) {
	body, err := runtime.Payload(raw)
	if err != nil {
		return nil, err
	}
	outer, err := firstPart(body)
	if err != nil {
		return nil, err
	}
	parts := multipart.NewReader(bytes.NewReader(outer), boundary(outer))
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		answer, err := http.ReadResponse(bufio.NewReader(part), nil)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode >= http.StatusBadRequest {
			return nil, readRefusal(answer)
		}
		results = append(results, result{azcore.ETag(answer.Header.Get("ETag"))})
	}
	if len(results) != actions {
		return nil, fmt.Errorf("tablestore: the response has %d answers to %d actions", len(results), actions)
	}
	return results, nil
}

// firstPart returns the only part of a response, whose end some servers omit.
func firstPart(body []byte) ([]byte, error) {
	part, err := multipart.NewReader(bytes.NewReader(body), boundary(body)).NextPart()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(part)
	if err == io.ErrUnexpectedEOF {
		err = nil
	}
	return text, err
}

// boundary returns the boundary that a body begins with.
func boundary(body []byte) string {
	line, _, _ := bytes.Cut(body, []byte("\n"))
	return strings.TrimPrefix(string(bytes.TrimRight(line, "\r")), "--")
}

func readRefusal(answer *http.Response) error {
	var text struct {
		Error struct {
			Code    string `json:"code"`
			Message struct {
				Value string `json:"value"`
			} `json:"message"`
		} `json:"odata.error"`
	}
	body, err := io.ReadAll(answer.Body)
	if err == nil || err == io.ErrUnexpectedEOF {
		err = json.Unmarshal(body, &text)
	}
	if err != nil {
		return fmt.Errorf("tablestore: read the refusal of a transaction: %w", err)
	}
	refused := &actionError{at: -1, status: answer.StatusCode, code: text.Error.Code, message: text.Error.Message.Value}
	if place, message, ok := strings.Cut(text.Error.Message.Value, ":"); ok {
		if n, err := strconv.Atoi(place); err == nil {
			refused.at, refused.message = n, message
		}
	}
	refused.message, _, _ = strings.Cut(refused.message, "\n")
	return refused
}
