package prove

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/trial"
)

// Count counts the effects of requests, by a query or a command.
type Count struct {
	Name    string
	Query   string // returns IDs of requests, and numbers
	Command string // prints them; with the placeholders of servers
}

// rows counts the effects of each ID.
func (r *run) rows(ctx context.Context, c Count) (map[string]int, error) {
	if c.Command == "" {
		return trial.Counts(ctx, r.options.Database, c.Query)
	}
	limited, cancel := context.WithTimeout(ctx, r.options.Patience)
	defer cancel()
	shell := []string{"sh", "-c"}
	if runtime.GOOS == "windows" {
		shell = []string{"cmd", "/C"}
	}
	cmd := exec.CommandContext(limited, shell[0], shell[1], fill(c.Command, r.direct))
	var printed bytes.Buffer
	said := new(tail)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &printed, said, pipeTime
	process, err := trial.StartGroup(cmd)
	if err != nil {
		return nil, err
	}
	err = process.Wait()
	_ = process.Cancel() // what is left of its group
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case limited.Err() != nil:
		return nil, fmt.Errorf("the command did not end within %v", r.options.Patience)
	case err != nil:
		return nil, fmt.Errorf("the command failed: %w%s", err, said)
	}
	return pairs(printed.String())
}

// pairs reads IDs and numbers, which white space separates: lines with both, or with
// one of them in turn, as redis-cli prints a hash.
func pairs(text string) (map[string]int, error) {
	found := map[string]int{}
	words := strings.Fields(text)
	for ; len(words) >= 2; words = words[2:] {
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return nil, fmt.Errorf("the command printed %q after the ID %q: it has to print an ID and a number for each request",
				words[1], words[0])
		}
		found[words[0]] += n
	}
	if len(words) > 0 {
		return nil, fmt.Errorf("the command printed the ID %q without a number: it has to print an ID and a number for each request",
			words[0])
	}
	return found, nil
}

// unused returns an error if a request of a file has a key or an effect from before
// the proof. Its answer would be an earlier one, and prove nothing.
func (r *run) unused(ctx context.Context) error {
	keys, stale := map[string]*Request{}, []*Request(nil)
	for i := range r.options.Templates {
		if t := &r.options.Templates[i]; !t.Fresh() {
			stale = append(stale, t)
			keys[t.key()] = t
		}
	}
	if len(stale) == 0 {
		return nil
	}
	recs, err := look(ctx, r.target, once.RecordQuery{}, everyRecord)
	if errors.Is(err, once.ErrInvalid) {
		recs, err = look(ctx, r.target, once.RecordQuery{Status: openStates}, everyRecord)
	}
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if t := keys[rec.Key.ID]; t != nil && rec.Status != once.Absent {
			return t.in(fmt.Errorf("%w: the key %s is in %s already, so an earlier answer would be repeated: "+
				"write {{id}} into it, or use a fresh database", ErrNothing, rec.Key.ID, r.target))
		}
	}
	for _, c := range r.options.Counts {
		rows, err := r.rows(ctx, c)
		if err != nil {
			continue // the program may make its tables when it starts
		}
		for _, t := range stale {
			if n := rows[t.name()]; n > 0 {
				return t.in(fmt.Errorf("%w: %s has effects already (%s: %d): write {{id}} into it, or use a fresh database",
					ErrNothing, t.name(), c.Name, n))
			}
		}
	}
	return nil
}
