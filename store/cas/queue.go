package cas

import "context"

// QueueEngine is a DocEngine that finds documents by how their names begin, for
// [Publishing].
type QueueEngine[Tx any] interface {
	DocEngine[Tx]

	// PlaceOf returns the Place of the documents that the transaction may write beside
	// what it holds already. An engine that has one place returns "". Others return an
	// error that wraps once.ErrInvalid while the place is not known, and says what to
	// do first.
	PlaceOf(tx Tx) (string, error)

	// Queued returns documents with any Place whose names begin with prefix and come
	// after a name, by name. There are at most limit of them. If there are fewer, there
	// are no more. It may be behind if Publishing.Lags is set. A transaction that is
	// visible in part is visible in whole soon.
	Queued(ctx context.Context, prefix, after string, limit int) ([]NamedDoc, error)

	// Move makes each of the moves on its own, in any order, and reports which were
	// made. A move is not made if its document does not exist, or if it has another
	// version than Over, or if there is one with the name To. If there is an error, some
	// may have been made.
	Move(ctx context.Context, moves []Move) (made []bool, err error)
}

// NamedDoc is a document with its name.
type NamedDoc struct {
	DocName
	Doc
}

// Move deletes a document, or gives it another name and text.
type Move struct {
	DocName
	Over string // empty: any version
	To   string // in the same Place, and maybe the same name; empty: the document is deleted
	Is   []byte // the text of To
}
