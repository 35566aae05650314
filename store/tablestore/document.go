package tablestore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// maxDoc is how many bytes a document has, in the emulator, too.
const maxDoc = maxOutcome

// longestName is how long a name is in a RowKey, which takes 512 characters.
const longestName = 400

// rowOf returns the name of a document for a RowKey, which takes no slashes. A dot
// sorts as a slash does among the characters of names.
func rowOf(name string) string { return strings.ReplaceAll(name, "/", ".") }

// entityOf returns where a document is.
func entityOf(at cas.DocName) (partition, row string) {
	partition, row = docsPartition, docPrefix+rowOf(at.Name)
	if at.Place != "" {
		partition = at.Place
	}
	if len(at.Name) > longestName {
		row = fmt.Sprintf("%s%x", longPrefix, sha256.Sum256([]byte(at.Name)))
	}
	return partition, row
}

// doc is an entity with a document, or a tombstone.
type doc struct {
	cas.Doc
	tombstone azcore.ETag // empty: it is none
}

// LoadDoc returns a document.
func (e *engine) LoadDoc(ctx context.Context, at cas.DocName) (cas.Doc, error) {
	is, err := e.loadDoc(ctx, at)
	return is.Doc, err
}

func (e *engine) loadDoc(ctx context.Context, at cas.DocName) (is doc, err error) {
	partition, row := entityOf(at)
	text, err := e.get(ctx, partition, row)
	if err != nil || text == nil {
		return is, err
	}
	var entity aztables.EDMEntity
	if err := json.Unmarshal(text, &entity); err != nil {
		var keys struct {
			ETag string `json:"odata.etag"`
		}
		_ = json.Unmarshal(text, &keys)
		is.Version, is.Damage = keys.ETag, fmt.Errorf("%w: tablestore: the document %s: %w", once.ErrCorrupt, at.Name, err)
		return is, nil
	}
	r := &reader{all: entity.Properties}
	if read[bool](r, "Tombstone", false) {
		return doc{tombstone: azcore.ETag(entity.ETag)}, nil
	}
	size := int(read[aztables.EDMInt64](r, "Size", true))
	is.Text, is.Version = make([]byte, 0, max(size, 0)), entity.ETag
	for part := 0; entity.Properties[partName(part)] != nil; part++ {
		is.Text = append(is.Text, read[aztables.EDMBinary](r, partName(part), true)...)
	}
	if r.bad != "" || len(is.Text) != size || is.Version == "" {
		is.Text, is.Damage = nil, fmt.Errorf("%w: tablestore: the document %s in the partition %q is damaged", once.ErrCorrupt, at.Name, partition)
	}
	return is, nil
}

// docEntity returns the entity of a document.
func docEntity(at cas.DocName, text []byte, expires cas.Instant) []byte {
	partition, row := entityOf(at)
	p := properties{"PartitionKey": partition, "RowKey": row}
	p.number("Size", int64(len(text)))
	p.time("Due", expires)
	part := 0
	for chunk := range slices.Chunk(text, partSize) {
		p.binary(partName(part), chunk)
		part++
	}
	return mustMarshal(p)
}

// bareEntity returns the keys of the entity of a document, to delete it.
func bareEntity(at cas.DocName) []byte {
	partition, row := entityOf(at)
	return mustMarshal(map[string]string{"PartitionKey": partition, "RowKey": row})
}

// writeDoc returns the action that makes a change.
func writeDoc(c cas.DocChange) aztables.TransactionAction {
	tag := azcore.ETag(c.Over)
	switch {
	case c.Is == nil:
		return aztables.TransactionAction{ActionType: aztables.TransactionTypeDelete, Entity: bareEntity(c.DocName), IfMatch: &tag}
	case c.Over == "":
		return aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: docEntity(c.DocName, c.Is, c.Expires)}
	}
	return aztables.TransactionAction{ActionType: aztables.TransactionTypeUpdateReplace, Entity: docEntity(c.DocName, c.Is, c.Expires), IfMatch: &tag}
}

// PlaceOf returns the partition of a transaction.
func (e *engine) PlaceOf(t *Tx) (string, error) {
	if _, err := e.Changes(t); err != nil {
		return "", err
	}
	for _, c := range t.changes.All() {
		return e.partitionOf(c.Is.Key)
	}
	if len(t.actions) > 0 {
		return t.place, nil
	}
	return "", fmt.Errorf("%w: tablestore: the transaction has no partition yet: claim, or add an entity, before you put messages", once.ErrInvalid)
}

// location is an entity with its version.
type location struct {
	partition, row string
	tag            azcore.ETag
}

// expiredDoc reads the keys of an entity that is due, if it is a document.
func expiredDoc(text []byte) (at location, ok bool) {
	var is struct {
		PartitionKey, RowKey string
		ETag                 string `json:"odata.etag"`
	}
	err := json.Unmarshal(text, &is)
	return location{is.PartitionKey, is.RowKey, azcore.ETag(is.ETag)},
		err == nil && is.ETag != "" && (strings.HasPrefix(is.RowKey, docPrefix) || strings.HasPrefix(is.RowKey, longPrefix))
}

// deleteDoc deletes an entity if it has its version still. It reports whether it
// is gone because of that.
func (e *engine) deleteDoc(ctx context.Context, at location) (deleted bool, err error) {
	err = e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.DeleteEntity(ctx, at.partition, at.row, &aztables.DeleteEntityOptions{IfMatch: &at.tag})
		return err
	}).err
	if isStale(err) {
		return false, nil
	}
	return err == nil, err
}

// isGone reports whether there was no such entity.
func isGone(err error) bool {
	return hasCode(err, aztables.ResourceNotFound) || hasCode(err, aztables.EntityNotFound)
}
