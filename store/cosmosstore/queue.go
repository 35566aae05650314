package cosmosstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

const (
	// docPrefix begins the ids of documents. The id of a record has only one hyphen.
	docPrefix = idPrefix + "doc-"

	// docPartition is the partition key of documents without a Place.
	docPartition = idPrefix + "documents"

	// maxDoc leaves room for base64 and the other properties of an item.
	maxDoc = 1 << 20
)

// docItem is a document as it is stored, besides the partition key.
type docItem struct {
	ID   string  `json:"id"`
	TTL  int64   `json:"ttl"`
	Once docName `json:"once"`
	Body *body   `json:"onceBody,omitempty"`
	ETag string  `json:"_etag,omitempty"` // set by the service
}

// docName is a name as it is stored.
type docName struct {
	Doc   string `json:"doc"`
	Out   string `json:"out,omitempty"`   // the name, if it is a message; relays find it by that
	Place string `json:"place,omitempty"` // the partition key, if it is not docPartition
}

// docID returns the id of a document. An id cannot have a slash. A period also
// sorts between the hyphen and the digits.
func docID(name string) string { return docPrefix + strings.ReplaceAll(name, "/", ".") }

// docAddress returns where the item of a document is.
func (e *engine) docAddress(at cas.DocName) (id, partition string) {
	id = docID(at.Name)
	if *e.property.Load() == "id" {
		return id, id
	}
	return id, cmp.Or(at.Place, docPartition)
}

// encodeDoc returns the item of a document.
func (e *engine) encodeDoc(c cas.DocChange, now cas.Now) ([]byte, error) {
	id, partition := e.docAddress(c.DocName)
	it := docItem{ID: id, TTL: -1, Once: docName{Doc: c.Name, Place: c.Place}, Body: docBody(c.Is)}
	if cas.IsMessage(c.Name) {
		it.Once.Out = c.Name
	}
	if c.Expires != 0 {
		it.TTL = secondsUntil(c.Expires, now)
	}
	text, err := json.Marshal(it)
	if err != nil {
		return nil, err
	}
	return within(text, *e.property.Load(), partition)
}

// docBody returns the text of a document as text, unless base64 is shorter.
func docBody(text []byte) *body {
	if isText(text) {
		is := string(text)
		if quoted, err := json.Marshal(is); err == nil && len(quoted) <= len(text)/3*4+8 {
			return &body{Text: &is}
		}
	}
	return &body{Bytes: text}
}

// decodeDoc returns the document of an item. ok is false for the item of an
// application that has properties like those of a document.
func decodeDoc(text []byte, version string) (doc cas.NamedDoc, ok bool) {
	var it docItem
	err := json.Unmarshal(text, &it)
	if err == nil && (it.Body == nil || it.Body.Text == nil && it.Body.Bytes == nil || docID(it.Once.Doc) != it.ID) {
		err = errors.New("it has no text, or another name")
	}
	if err != nil {
		var is struct {
			ID   string          `json:"id"`
			ETag string          `json:"_etag"`
			Once json.RawMessage `json:"once"`
		}
		_ = json.Unmarshal(text, &is) // the service returns JSON
		name, ours := strings.CutPrefix(is.ID, docPrefix)
		var at docName
		_ = json.Unmarshal(is.Once, &at)
		doc.DocName = cas.DocName{Place: at.Place, Name: strings.ReplaceAll(name, ".", "/")}
		doc.Version, doc.Damage = cmp.Or(version, is.ETag), fmt.Errorf("%w: the item of the document %q: %w", once.ErrCorrupt, is.ID, err)
		return doc, ours
	}
	doc.DocName = cas.DocName{Place: it.Once.Place, Name: it.Once.Doc}
	doc.Version = cmp.Or(version, it.ETag)
	if doc.Text = it.Body.Bytes; it.Body.Text != nil {
		doc.Text = []byte(*it.Body.Text)
	}
	return doc, true
}

// LoadDoc returns a document, as the primary replica has it.
func (e *engine) LoadDoc(ctx context.Context, at cas.DocName) (cas.Doc, error) {
	if err := e.ready(ctx); err != nil {
		return cas.Doc{}, err
	}
	id, partition := e.docAddress(at)
	found, err := e.read(ctx, id, partition)
	if err != nil || found.StatusCode == http.StatusNotFound {
		return cas.Doc{}, err
	}
	doc, _ := decodeDoc(found.ResourceBody, string(found.ETag))
	return doc.Doc, nil
}

// PlaceOf returns the partition key of a transaction.
func (e *engine) PlaceOf(tx *Tx) (string, error) {
	changes, err := e.Changes(tx)
	if err != nil {
		return "", err
	}
	property := e.property.Load()
	if property == nil || *property == "id" {
		return "", fmt.Errorf("%w: cosmosstore: messages need a container whose partition key is not /id", once.ErrInvalid)
	}
	if all := changes.All(); len(all) > 0 {
		_, partition, err := e.address(all[0].Is.Key)
		return partition, err
	}
	for _, w := range tx.writes {
		if w.body != nil {
			partition, err := partitionOf(w.body, *property)
			if err != nil {
				err = fmt.Errorf("%w: cosmosstore: %w", once.ErrInvalid, err)
			}
			return partition, err
		}
	}
	for _, d := range changes.Docs() {
		if d.Place != "" {
			return d.Place, nil
		}
	}
	return "", fmt.Errorf("%w: cosmosstore: the partition key of the transaction is not known yet: claim, or write an item, before you "+
		"put messages", once.ErrInvalid)
}

// namesAtOnce is how many names Queued holds at the same time, if its limit is
// lower.
const namesAtOnce = 1000

// Queued returns messages, as any replica has them.
//
// The gateway does not order across partitions. So Queued reads names first. If
// there are too many, the limit-th of those that it has is an upper bound for its
// page, and it begins again with that. Then it reads the texts. Calls that come at
// once share the names of the first pages of queues, while they are few.
func (e *engine) Queued(ctx context.Context, prefix, after string, limit int) (found []cas.NamedDoc, err error) {
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	if !cas.IsMessage(prefix) {
		return nil, fmt.Errorf("%w: cosmosstore finds messages, and not documents whose names begin with %q", once.ErrInvalid, prefix)
	}
	// Names have no tilde, which sorts after all that they may have.
	end := prefix + "~"
	first := false
	if after < prefix {
		last := len(prefix) - 1
		after, first = prefix[:last]+string(prefix[last]-1)+"~", prefix[last] == '/'
	}
	for len(found) < limit && after < end {
		var last string
		var more, known bool
		if first {
			last, more, known = e.firstBound(ctx, prefix, end, limit)
			first = false
		}
		if !known {
			last, more, err = e.bound(ctx, after, end, limit-len(found))
		}
		if err != nil || last == "" {
			return found, err
		}
		docs, err := e.messages(ctx, after, last)
		if err != nil {
			return nil, err
		}
		if found, after = append(found, docs...), last; !more {
			break
		}
	}
	return found[:min(len(found), max(limit, 0))], nil
}

const between = "c.once.out > @after AND c.once.out <= @to"

// bound returns the name of the last message of a page, or "" if there are none,
// and whether there may be more after it.
func (e *engine) bound(ctx context.Context, after, to string, limit int) (last string, more bool, err error) {
	most := max(namesAtOnce, 2*limit)
	for {
		names, full, err := e.namesOf(ctx, after, to, most)
		switch {
		case err != nil:
			return "", false, err
		case len(names) == 0 && more: // those that made the bound are gone
			return to, true, nil
		case len(names) == 0:
			return "", false, nil
		}
		slices.Sort(names)
		if full && names[limit-1] < to {
			to, more = names[limit-1], true
			continue
		}
		if len(names) > limit {
			return names[limit-1], true, nil
		}
		if more { // some of those that made the bound are gone
			return to, true, nil
		}
		return names[len(names)-1], false, nil
	}
}

// messages returns the messages of a range, by name.
func (e *engine) messages(ctx context.Context, after, to string) (found []cas.NamedDoc, err error) {
	err = e.items(ctx, "SELECT c.id, c.once, c.onceBody, c._etag FROM c WHERE "+between, largestPage, func(text []byte) (bool, error) {
		if doc, ok := decodeDoc(text, ""); ok {
			found = append(found, doc)
		}
		return true, nil
	}, parameter("@after", after), parameter("@to", to))
	slices.SortFunc(found, func(a, b cas.NamedDoc) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Place, b.Place))
	})
	return found, err
}

// items calls each with the items that a query selects, until it returns false.
func (e *engine) items(ctx context.Context, query string, page int32, each func([]byte) (bool, error), parameters ...azcosmos.QueryParameter) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	pages := e.container.NewQueryItemsPager(query, azcosmos.NewPartitionKey(), &azcosmos.QueryOptions{PageSizeHint: page, QueryParameters: parameters})
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, text := range page.Items {
			if more, err := each(text); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// Move makes moves, each with a request of its own.
func (e *engine) Move(ctx context.Context, moves []cas.Move) ([]bool, error) {
	now, err := e.now(ctx)
	if err != nil {
		return nil, err
	}
	return cas.MoveEach(moves, func(m cas.Move) (bool, error) { return e.move(ctx, m, now) })
}

// move makes a move. A request without an answer is repeated. If a repeat finds
// no document, the first has probably made the move: for a deletion that is
// reported, although somebody else may have ended the same message meanwhile. For
// another name the new document decides.
func (e *engine) move(ctx context.Context, m cas.Move, now cas.Now) (made bool, err error) {
	const tries = 3
	for try := 1; ; try++ {
		made, err = e.moveOnce(ctx, m, now)
		switch {
		case err == nil && !made && try > 1:
			if m.To == "" {
				doc, err := e.LoadDoc(ctx, m.DocName)
				return err == nil && doc.Version == "", err
			}
			doc, err := e.LoadDoc(ctx, cas.DocName{Place: m.Place, Name: m.To})
			return err == nil && doc.Version != "" && bytes.Equal(doc.Text, m.Is), err
		case err == nil, try == tries, ctx.Err() != nil, !mayHaveBeenApplied(err):
			return made, err
		}
	}
}

func (e *engine) moveOnce(ctx context.Context, m cas.Move, now cas.Now) (made bool, err error) {
	id, partition := e.docAddress(m.DocName)
	var tag *azcore.ETag
	if m.Over != "" {
		over := azcore.ETag(m.Over)
		tag = &over
	}
	batch := e.container.NewTransactionalBatch(azcosmos.NewPartitionKeyString(partition))
	o := &azcosmos.TransactionalBatchItemOptions{IfMatchETag: tag}
	if m.To != "" {
		text, err := e.encodeDoc(cas.DocChange{DocName: cas.DocName{Place: m.Place, Name: m.To}, Is: m.Is}, now)
		if err != nil {
			return false, err
		}
		if m.To == m.Name { // a batch may not write an item twice
			batch.ReplaceItem(id, text, o)
		} else {
			batch.DeleteItem(id, o)
			batch.CreateItem(text, nil)
		}
	} else {
		batch.DeleteItem(id, o)
	}
	results, err := e.execute(ctx, batch)
	if err != nil {
		return false, err
	}
	cause := causeOf(results)
	switch {
	case cause < 0:
		return true, nil
	case isStale(int(results[cause].StatusCode)):
		return false, nil
	}
	return false, fmt.Errorf("cosmosstore: the service refused to move %s with status %d", m.Name, results[cause].StatusCode)
}
