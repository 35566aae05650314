package crosscheck

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
)

// Report is a report that was read and checked. It has an index of 24 bytes per
// line, and reads the lines again when they are needed. Run one [Comparison] of
// it at a time.
type Report struct {
	Column  string // that has the IDs or keys
	Lines   int    // without those that were skipped
	Skipped int    // lines without an ID

	// NotHappened counts the lines that did not happen by their status, those of more
	// than a hundred statuses as "…". Look at it: a status that is missing in
	// [Format.Happened] hides what happened twice.
	NotHappened map[string]int

	// Cut reports that the last line of CSV has no end, so the report may have been
	// cut in the middle of it: that line supports no decision.
	Cut bool

	from   io.ReadSeeker
	start  int64
	format Format
	of     once.Key
	sum    [sha256.Size]byte
	index  []entry
	last   int // the number of the last line
}

const maxStatuses = 100

func (r *Report) count(status string) {
	if _, known := r.NotHappened[status]; !known && len(r.NotHappened) >= maxStatuses {
		status = "…"
	}
	r.NotHappened[status]++
}

// lastByte is the last that was written.
type lastByte byte

func (l *lastByte) Write(b []byte) (int, error) {
	if len(b) > 0 {
		*l = lastByte(b[len(b)-1])
	}
	return len(b), nil
}

// entry is a line of the index, which is sorted by ID. Of the lines with an ID,
// those that happened come first, and they are in the order of the report.
type entry struct {
	id       [16]byte
	line     uint32
	happened bool
	settled  bool // of the first line of an ID: by the list of records, it is done or expired, and not rejected
}

// Read reads and checks a report, from where it is positioned to its end. of has
// the operation, and the scope of keys that are given by their IDs; its ID is
// ignored. The report must not change until it is not used any more.
func Read(ctx context.Context, from io.ReadSeeker, f Format, of once.Key) (*Report, error) {
	of.ID = "any"
	if err := of.Validate(); err != nil {
		return nil, err
	}
	if err := f.validate(); err != nil {
		return nil, err
	}
	start, err := from.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	r := &Report{from: from, start: start, format: f, of: of}
	sum, last := sha256.New(), new(lastByte)
	in, err := newLines(io.TeeReader(from, io.MultiWriter(sum, last)), f, of)
	if err != nil {
		return nil, err
	}
	r.NotHappened = make(map[string]int)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		l, err := in.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if l.number >= math.MaxUint32 {
			return nil, wrong(l.number, "there are too many lines: divide the report")
		}
		r.last = l.number
		if l.text == "" {
			r.Skipped++
			continue
		}
		if !l.happened {
			r.count(l.status)
		}
		r.index = append(r.index, entry{id: l.id, line: uint32(l.number), happened: l.happened})
	}
	if in.Syntax == JSONLines && !in.begun {
		return nil, wrong(0, "it is empty")
	}
	if err := in.missing(); err != nil {
		return nil, err
	}
	r.format = in.Format // with what was detected
	r.Column = in.ID
	if in.Key != "" {
		r.Column = in.Key
	}
	r.Lines = len(r.index)
	r.Cut = in.Syntax == CSV && r.last > 0 && *last != '\n' && *last != '\r' && *last != '"'
	r.sum = [sha256.Size]byte(sum.Sum(nil))
	slices.SortFunc(r.index, func(a, b entry) int {
		switch c := bytes.Compare(a.id[:], b.id[:]); {
		case c != 0:
			return c
		case a.happened != b.happened && a.happened:
			return -1
		case a.happened != b.happened:
			return 1
		}
		return int(int64(a.line) - int64(b.line))
	})
	return r, nil
}

// find returns where the lines of an ID begin in the index.
func (r *Report) find(id [16]byte) (group int, found bool) {
	return sort.Find(len(r.index), func(i int) int { return bytes.Compare(id[:], r.index[i].id[:]) })
}

// lines returns the lines of an ID that happened, and all of them if none did.
// group is where they begin in the index.
func (r *Report) lines(group int) (lines []int, happened bool) {
	first := r.index[group]
	for _, e := range r.index[group:] {
		if e.id != first.id || e.happened != first.happened {
			break
		}
		lines = append(lines, int(e.line))
	}
	return lines, first.happened
}

// happenedTwice reports whether an ID happened more than once.
func (r *Report) happenedTwice(group int) bool {
	return group+1 < len(r.index) && r.index[group+1].id == r.index[group].id && r.index[group+1].happened
}

// each calls do with the line that stands for each ID: the first that happened,
// or else the first. It fails if the report has changed.
func (r *Report) each(ctx context.Context, do func(l line, group int) error) error {
	changed := errors.New("the report has changed while it was used: begin again")
	if _, err := r.from.Seek(r.start, io.SeekStart); err != nil {
		return err
	}
	sum := sha256.New()
	in, err := newLines(io.TeeReader(r.from, sum), r.format, r.of)
	for n := 0; err == nil; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		var l line
		if l, err = in.next(); err != nil || l.text == "" {
			continue
		}
		group, found := r.find(l.id)
		if !found {
			return changed
		}
		if int(r.index[group].line) != l.number {
			continue
		}
		if err := do(l, group); err != nil {
			return err
		}
	}
	var unfit *FormatError
	if err != io.EOF && !errors.As(err, &unfit) {
		return err
	}
	if err != io.EOF || [sha256.Size]byte(sum.Sum(nil)) != r.sum {
		return changed
	}
	return nil
}

// parseKey returns the UUID of a key as it travels, or zero.
func parseKey(text string) [16]byte { return name.Parse(strings.ToLower(strings.TrimSpace(text))) }
