package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// A document is a hash with its text and version. The names of messages are
// members of a sorted set, the index. The documents of a store have one slot, so
// that one script writes them: that of its first partition.
func (s *Store) docKey(name string) string { return s.docKeys() + name }

func (s *Store) docKeys() string  { return s.partition(0) + "doc:" }
func (s *Store) indexKey() string { return s.partition(0) + "out" }
func (s *Store) bellKey() string  { return s.partition(0) + "bell" }

// maxDoc bounds how long the server is busy with one document.
const maxDoc = 32 << 20

// inspecting is the key of contexts of calls that read a position although its
// last transaction stopped between two commands.
type inspecting struct{}

// SetPosition writes a row and raises its Epoch. It also releases a position whose
// last transaction stopped between two commands.
func (s *Store) SetPosition(ctx context.Context, to store.Position) error {
	return s.Consuming.SetPosition(context.WithValue(ctx, inspecting{}, true), to)
}

// Positions returns the rows of a consumer, by partition.
func (s *Store) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	return s.Consuming.Positions(context.WithValue(ctx, inspecting{}, true), consumer)
}

// LoadDoc returns a document.
func (e engine) LoadDoc(ctx context.Context, at cas.DocName) (cas.Doc, error) {
	if err := e.ready(ctx); err != nil {
		return cas.Doc{}, err
	}
	const parts = 5 // the time, three fields, and whether it is damaged
	sent := time.Now()
	reply, err := e.run(ctx, e.scripts.loadDoc, []string{e.docKey(at.Name), e.indexKey()}).StringSlice()
	if err != nil {
		e.checkAgain(err)
		if err = explain(err); errors.Is(err, once.ErrCorrupt) {
			return damagedDoc(at.Name, err.Error()), nil
		}
		return cas.Doc{}, err
	}
	if len(reply) != parts {
		return cas.Doc{}, errReply(reply)
	}
	now, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		return cas.Doc{}, errReply(reply)
	}
	e.clock.Learn(sent, time.UnixMicro(now), time.Microsecond)
	if why := reply[3]; why != "" && ctx.Value(inspecting{}) == nil {
		return cas.Doc{}, fmt.Errorf("%w: redisstore: a position, until it is set: %s", once.ErrParked, why)
	}
	switch {
	case reply[4] == "1":
		doc := damagedDoc(at.Name, "it lacks its version or its text")
		doc.Version = cmp.Or(reply[1], doc.Version)
		return doc, nil
	case reply[1] == "":
		return cas.Doc{}, nil
	}
	return cas.Doc{Text: []byte(reply[2]), Version: reply[1]}, nil
}

// damagedDoc is a document that exists and cannot be read.
func damagedDoc(name, why string) cas.Doc {
	return cas.Doc{Version: "none", Damage: fmt.Errorf("%w: redisstore: the document %s: %s", once.ErrCorrupt, name, why)}
}

func errReply(reply []string) error {
	return fmt.Errorf("%w: a script returned %d values", once.ErrCorrupt, len(reply))
}

// appendDoc appends what commit.lua writes of a document.
func appendDoc(args []any, d cas.DocChange) []any {
	keeps, expires := 0, ""
	if d.Is != nil {
		keeps = 1
	}
	if d.Expires != 0 {
		expires = strconv.FormatInt(int64(d.Expires), 10)
	}
	return append(args, d.Name, d.Over, keeps, d.Is, expires)
}

// PlaceOf returns "", because all documents of a store are in one slot.
func (e engine) PlaceOf(*Tx) (string, error) { return "", e.checkSlot() }

// maxPage is after how many bytes a script returns the documents that it has.
const maxPage = 8 << 20

// Queued returns documents by how their names begin.
func (e engine) Queued(ctx context.Context, prefix, after string, limit int) (all []cas.NamedDoc, err error) {
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	from := "[" + prefix
	if after >= prefix {
		from = "(" + after
	}
	for len(all) < limit {
		reply, err := e.run(ctx, e.scripts.queued, []string{e.indexKey()}, from, "["+prefix+"\xff", limit-len(all), e.docKeys(), maxPage).StringSlice()
		if err != nil {
			e.checkAgain(err)
			return nil, explain(err)
		}
		if len(reply)%3 != 1 {
			return nil, errReply(reply)
		}
		for d := range slices.Chunk(reply[1:], 3) {
			doc := cas.Doc{Version: d[1], Text: []byte(d[2])}
			if d[1] == "" {
				doc = damagedDoc(d[0], d[2])
			}
			all = append(all, cas.NamedDoc{DocName: cas.DocName{Name: d[0]}, Doc: doc})
		}
		if reply[0] == "" {
			break
		}
		from = "(" + reply[0]
	}
	return all, nil
}

// maxMoves is how many moves a script makes, during which the server does nothing
// else, and maxMoved is after how many bytes it gets no more.
const (
	maxMoves = 1000
	maxMoved = 32 << 20
)

// Move makes moves, of which a script makes many.
func (e engine) Move(ctx context.Context, moves []cas.Move) (made []bool, err error) {
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	for len(moves) > 0 {
		n, bytes := 1, len(moves[0].Is)
		for n < min(len(moves), maxMoves) && bytes+len(moves[n].Is) <= maxMoved {
			bytes += len(moves[n].Is)
			n++
		}
		some, err := e.move(ctx, moves[:n])
		if err != nil {
			return made, err
		}
		made, moves = append(made, some...), moves[n:]
	}
	return made, nil
}

func (e engine) move(ctx context.Context, moves []cas.Move) ([]bool, error) {
	keys, args := []string{e.indexKey(), e.bellKey()}, []any{rand.Text()}
	for _, m := range moves {
		to := m.To
		if to == "" {
			to = m.Name
		}
		keys = append(keys, e.docKey(m.Name), e.docKey(to))
		args = append(args, m.Name, m.Over, m.To, m.Is)
	}
	made, err := e.runOnce(ctx, e.scripts.move, keys, args).BoolSlice()
	switch {
	case err != nil:
		e.checkAgain(err)
		return nil, explainCommit(err)
	case len(made) != len(moves):
		return nil, errReply(make([]string, len(made)))
	}
	return made, nil
}
