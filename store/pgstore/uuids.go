package pgstore

import (
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// uuids are ids as an array that every exec mode can send: binary where the server has told its types, else text.
// Making each of many a text of its own would be much of the cost of a batch.
type uuids [][16]byte

var (
	_ pgtype.ArrayGetter = uuids(nil)
	_ pgtype.TextValuer  = uuids(nil)
	_ pgtype.UUIDValuer  = (*element)(nil)
)

// Dimensions is that of an array of one dimension.
func (u uuids) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(u)), LowerBound: 1}}
}

// Index returns a pointer, for which nothing is allocated.
func (u uuids) Index(i int) any { return (*element)(&u[i]) }

// IndexType is what Index returns.
func (u uuids) IndexType() any { return new(element) }

// TextValue is the array as SQL has it in texts.
func (u uuids) TextValue() (pgtype.Text, error) {
	texts := make([]string, len(u))
	for i, id := range u {
		texts[i] = uuid(id)
	}
	return pgtype.Text{String: "{" + strings.Join(texts, ",") + "}", Valid: true}, nil
}

// element is one of uuids.
type element [16]byte

// UUIDValue is the id as pgx takes it.
func (e *element) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: *e, Valid: true}, nil }
