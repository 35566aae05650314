package pgstore

import (
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// uuidArray is an array of ids that every exec mode can send: in binary where
// the types are known from the server, otherwise as text. Formatting each id as
// a text of its own would be much of the cost of a batch.
type uuidArray [][16]byte

var (
	_ pgtype.ArrayGetter = uuidArray(nil)
	_ pgtype.TextValuer  = uuidArray(nil)
	_ pgtype.UUIDValuer  = (*element)(nil)
)

// Dimensions returns one dimension.
func (u uuidArray) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(u)), LowerBound: 1}}
}

// Index returns a pointer, which allocates nothing.
func (u uuidArray) Index(i int) any { return (*element)(&u[i]) }

// IndexType returns the type of what Index returns.
func (u uuidArray) IndexType() any { return new(element) }

// TextValue returns the array as a literal of SQL.
func (u uuidArray) TextValue() (pgtype.Text, error) {
	texts := make([]string, len(u))
	for i, id := range u {
		texts[i] = uuid(id)
	}
	return pgtype.Text{String: "{" + strings.Join(texts, ",") + "}", Valid: true}, nil
}

// element is an element of a uuidArray.
type element [16]byte

// UUIDValue returns the id as pgx expects it.
func (e *element) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: *e, Valid: true}, nil }
