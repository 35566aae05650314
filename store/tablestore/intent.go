package tablestore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// An intent says that a message will be in a partition, or is, or was. It is
// written before the message, and deleted after it, and always only if it has the
// ETag that was known before what makes its deletion safe. So a message never
// lacks its intent. docs/decisions/0052 goes through the interleavings.

const (
	// maxUnsettled is how old an intent without a message is when its commit is taken
	// for failed. The service ends a request after 30 seconds. Nothing but time depends
	// on it: a tombstone refuses a commit that is later still.
	maxUnsettled = time.Minute

	// keepTombstone is how long a tombstone refuses late commits.
	keepTombstone = 24 * time.Hour

	// maxReads is how many messages are read at once.
	maxReads = 48
)

func intentRow(name string) string { return intentPrefix + rowOf(name) }

// intent is one that is stored.
type intent struct {
	cas.DocName
	tag     azcore.ETag
	written cas.Instant // by the service's clock
}

func (i intent) at() location { return location{outPartition, intentRow(i.Name), i.tag} }

func intentEntity(at cas.DocName) []byte {
	return mustMarshal(map[string]string{"PartitionKey": outPartition, "RowKey": intentRow(at.Name), "Document": at.Name, "Place": at.Place})
}

func readIntent(text []byte) (i intent, err error) {
	var entity aztables.EDMEntity
	if err := json.Unmarshal(text, &entity); err != nil {
		return i, fmt.Errorf("%w: tablestore: %w", once.ErrCorrupt, err)
	}
	r := &reader{all: entity.Properties}
	i.DocName = cas.DocName{Place: read[string](r, "Place", true), Name: read[string](r, "Document", true)}
	i.tag, i.written = azcore.ETag(entity.ETag), cas.Instant(time.Time(entity.Timestamp).UnixMicro())
	if r.bad != "" || i.tag == "" || entity.RowKey != intentRow(i.Name) {
		return i, fmt.Errorf("%w: tablestore: the entity %s in the partition %s is damaged", once.ErrCorrupt, entity.RowKey, outPartition)
	}
	return i, nil
}

// tags are the ETags of a message and its intent, as they were read together.
type tags struct{ message, intent azcore.ETag }

// memory has the tags of messages that were read last, in two generations.
type memory struct {
	mu            sync.Mutex
	recent, older map[cas.DocName]tags
}

const maxRemembered = 32 << 10

func (m *memory) keep(at cas.DocName, is tags) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.recent == nil || len(m.recent) >= maxRemembered {
		m.older, m.recent = m.recent, make(map[cas.DocName]tags)
	}
	m.recent[at] = is
}

func (m *memory) of(at cas.DocName) tags {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.recent[at], m.older[at])
}

// intend writes the intents of the messages that a transaction creates. Nothing
// of the transaction was sent if there is an error.
func (e *engine) intend(ctx context.Context, docs []cas.DocChange) (intents []intent, err error) {
	var actions []write
	for _, c := range docs {
		if c.Over == "" && c.Is != nil && cas.IsMessage(c.Name) {
			actions = append(actions, write{row: aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: intentEntity(c.DocName)}})
			intents = append(intents, intent{DocName: c.DocName})
		}
	}
	switch len(actions) {
	case 0:
		return nil, nil
	case 1:
		intents[0].tag, err = e.addIntent(ctx, intents[0].DocName)
	default:
		var results []result
		results, err = e.submit(ctx, actions, nil)
		for i := range results {
			intents[i].tag = results[i].tag
		}
	}
	if hasCode(err, aztables.EntityAlreadyExists) { // another message has the name, or a busy service has met this one
		return nil, fmt.Errorf("%w: tablestore: the intent of a message exists: %w", once.ErrConflict, err)
	}
	if err != nil {
		return nil, fmt.Errorf("tablestore: write the intents of the messages, before the transaction, which was not sent: %w", err)
	}
	return intents, nil
}

func (e *engine) addIntent(ctx context.Context, at cas.DocName) (tag azcore.ETag, err error) {
	err = e.call(ctx, func(ctx context.Context) error {
		resp, err := e.client.AddEntity(ctx, intentEntity(at), nil)
		tag = resp.ETag
		return err
	}).err
	return tag, err
}

// endTime bounds the deletion of intents after the caller's context has ended.
const endTime = 10 * time.Second

// endIntents deletes intents that have their ETags still. Those that remain are
// deleted by whoever reads them.
func (e *engine) endIntents(ctx context.Context, intents []intent) {
	if len(intents) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if len(intents) > 1 {
		for first := 0; first < len(intents); first += maxActions {
			e.endGroup(ctx, intents[first:min(first+maxActions, len(intents))])
		}
		return
	}
	_, _ = e.deleteDoc(ctx, intents[0].at())
}

func (e *engine) endGroup(ctx context.Context, intents []intent) {
	var actions []write
	for i := range intents {
		actions = append(actions, write{row: aztables.TransactionAction{ActionType: aztables.TransactionTypeDelete,
			Entity: mustMarshal(map[string]string{"PartitionKey": outPartition, "RowKey": intentRow(intents[i].Name)}), IfMatch: &intents[i].tag}})
	}
	if _, err := e.submit(ctx, actions, nil); err == nil {
		return
	}
	_ = inParallel(len(intents), func(i int) error { _, err := e.deleteDoc(ctx, intents[i].at()); return err })
}

// Queued returns messages by their intents. The intents are read first, so a
// message that is there when Queued is called has one, and is read.
func (e *engine) Queued(ctx context.Context, prefix, after string, limit int) (page []cas.NamedDoc, err error) {
	now, err := e.clock.Now(ctx)
	if err != nil {
		return nil, err
	}
	begin, end := intentRow(prefix), intentRow(prefix)+"~"
	filter := fmt.Sprintf("PartitionKey eq '%s' and RowKey ge '%s' and RowKey lt '%s'", outPartition, begin, end)
	if after != "" {
		filter += fmt.Sprintf(" and RowKey gt '%s'", intentRow(after))
	}
	var found []cas.NamedDoc // without a Version: there is only the intent
	for from, full := (place{}), 0; full < limit; {
		entities, next, err := e.entities(ctx, filter, from, limit-full)
		if err != nil {
			return nil, err
		}
		some := make([]cas.NamedDoc, len(entities))
		err = inParallel(len(entities), func(n int) error {
			i, err := readIntent(entities[n])
			if err != nil {
				return nil // it does not name a message
			}
			some[n], err = e.readQueued(ctx, i.tag, i.DocName, func() (cas.Doc, error) { return e.resolve(ctx, i, now) })
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, doc := range some {
			if found = append(found, doc); doc.Version != "" {
				full++
			}
		}
		if from = next; next == (place{}) {
			break
		}
	}
	if err := e.readAgain(ctx, found); err != nil {
		return nil, err
	}
	for _, doc := range found {
		if doc.Version != "" && len(page) < limit {
			page = append(page, doc)
		}
	}
	return page, nil
}

// readQueued reads a message when fewer than maxReads are being read.
func (e *engine) readQueued(ctx context.Context, intent azcore.ETag, at cas.DocName, read func() (cas.Doc, error)) (is cas.NamedDoc, err error) {
	select {
	case e.reads <- struct{}{}:
		defer func() { <-e.reads }()
	case <-ctx.Done():
		return is, ctx.Err()
	}
	is.DocName = at
	if is.Doc, err = read(); is.Version != "" && intent != "" {
		e.seen.keep(at, tags{azcore.ETag(is.Version), intent})
	}
	return is, err
}

// readAgain reads messages that were not there, if a later one was: it may be of
// the same transaction, which was committed between the two reads. What is not
// there after all others were read was committed after them, or never.
func (e *engine) readAgain(ctx context.Context, found []cas.NamedDoc) error {
	last := len(found) - 1
	for last >= 0 && found[last].Version == "" {
		last--
	}
	for {
		var missing []int
		for n := range max(last, 0) {
			if found[n].Version == "" {
				missing = append(missing, n)
			}
		}
		var more atomic.Bool
		err := inParallel(len(missing), func(n int) error {
			at := found[missing[n]].DocName
			is, err := e.readQueued(ctx, "", at, func() (cas.Doc, error) { return e.LoadDoc(ctx, at) })
			if found[missing[n]] = is; is.Version != "" {
				more.Store(true)
			}
			return err
		})
		if err != nil || !more.Load() {
			return err
		}
	}
}

// resolve returns the message of an intent. If there is none, and the intent is
// so old that its commit should have ended, it prevents the commit, and deletes
// the intent.
func (e *engine) resolve(ctx context.Context, i intent, now cas.Now) (cas.Doc, error) {
	for {
		is, err := e.loadDoc(ctx, i.DocName)
		if err != nil || is.Version != "" {
			return is.Doc, err
		}
		if now.AtLeastSince(i.written) <= cmp.Or(e.settle, maxUnsettled) {
			return cas.Doc{}, nil
		}
		// The tombstone is written anew although there is one: whoever would replace it
		// by a message has read it before he wrote the intent.
		done, err := e.bury(ctx, i.DocName, is.tombstone, now)
		if err != nil {
			return cas.Doc{}, err
		}
		if done {
			_, err := e.deleteDoc(ctx, i.at())
			return cas.Doc{}, err
		}
	}
}

// bury writes a tombstone where no message is, or over another tombstone. It
// returns false if something else is there by now.
func (e *engine) bury(ctx context.Context, at cas.DocName, over azcore.ETag, now cas.Now) (done bool, err error) {
	partition, row := entityOf(at)
	p := properties{"PartitionKey": partition, "RowKey": row, "Tombstone": true}
	p.time("Due", now.In(keepTombstone))
	text := mustMarshal(p)
	err = e.call(ctx, func(ctx context.Context) error {
		if over == "" {
			_, err := e.client.AddEntity(ctx, text, nil)
			return err
		}
		_, err := e.client.UpdateEntity(ctx, text, &aztables.UpdateEntityOptions{IfMatch: &over, UpdateMode: aztables.UpdateModeReplace})
		return err
	}).err
	if isStale(err) {
		return false, nil
	}
	return err == nil, err
}

// intendAgain writes an intent for a message that gets another name. There may be
// one of an earlier try, which is replaced, so that whoever has read that one does not
// delete this. It returns false if another partition has the name.
func (e *engine) intendAgain(ctx context.Context, at cas.DocName) (i intent, isNew, ok bool, err error) {
	for {
		i = intent{DocName: at}
		if i.tag, err = e.addIntent(ctx, at); err == nil {
			return i, true, true, nil
		}
		if !hasCode(err, aztables.EntityAlreadyExists) {
			return i, false, false, err
		}
		text, err := e.get(ctx, outPartition, intentRow(at.Name))
		if err != nil {
			return i, false, false, err
		}
		if text == nil {
			continue
		}
		was, err := readIntent(text)
		if err != nil || was.Place != at.Place {
			return i, false, false, err
		}
		err = e.call(ctx, func(ctx context.Context) error {
			resp, err := e.client.UpdateEntity(ctx, intentEntity(at), &aztables.UpdateEntityOptions{IfMatch: &was.tag, UpdateMode: aztables.UpdateModeReplace})
			i.tag = resp.ETag
			return err
		}).err
		if err == nil || !isStale(err) {
			return i, false, err == nil, err
		}
	}
}

// Move deletes or renames messages: each message before its intent, and the new
// intent before the new message.
func (e *engine) Move(ctx context.Context, moves []cas.Move) (made []bool, err error) {
	made = make([]bool, len(moves))
	ended := make([]intent, len(moves))
	err = inParallel(len(moves), func(n int) (err error) {
		m := moves[n]
		ended[n] = intent{DocName: m.DocName}
		isMessage := cas.IsMessage(m.Name)
		// The ETag must be known before the message is gone: later the intent may be that
		// of a message which gets the name back.
		if seen := e.seen.of(m.DocName); seen.intent != "" {
			ended[n].tag = seen.intent
		} else if isMessage && m.To != m.Name {
			if ended[n], err = e.loadIntent(ctx, m.DocName); err != nil {
				return err
			}
		}
		if m.To == "" {
			made[n], err = e.deleteAny(ctx, m)
		} else {
			made[n], err = e.rename(ctx, m)
		}
		return err
	})
	var gone []intent
	for n := range moves {
		if made[n] && ended[n].tag != "" && moves[n].To != moves[n].Name {
			gone = append(gone, ended[n])
		}
	}
	e.endIntents(ctx, gone)
	return made, err
}

func (e *engine) loadIntent(ctx context.Context, at cas.DocName) (i intent, err error) {
	text, err := e.get(ctx, outPartition, intentRow(at.Name))
	if err != nil || text == nil {
		return i, err
	}
	if i, err = readIntent(text); i.DocName != at {
		return intent{}, err
	}
	return i, err
}

// deleteAny deletes a message, and never a tombstone. If the service was busy, an
// earlier try may be the one that has deleted it, so one that is gone then counts
// as deleted.
func (e *engine) deleteAny(ctx context.Context, m cas.Move) (made bool, err error) {
	partition, row := entityOf(m.DocName)
	tag := cmp.Or(azcore.ETag(m.Over), e.seen.of(m.DocName).message)
	for {
		if tag == "" {
			is, err := e.loadDoc(ctx, m.DocName)
			if err != nil || is.Version == "" {
				return false, err
			}
			tag = azcore.ETag(is.Version)
		}
		r := e.call(ctx, func(ctx context.Context) error {
			_, err := e.client.DeleteEntity(ctx, partition, row, &aztables.DeleteEntityOptions{IfMatch: &tag})
			return err
		})
		if !isStale(r.err) {
			return r.err == nil, r.err
		}
		if isGone(r.err) || m.Over != "" {
			return r.busy && isGone(r.err), nil
		}
		tag = "" // it has changed
	}
}

// rename writes a document under another name, and deletes it under its own.
func (e *engine) rename(ctx context.Context, m cas.Move) (made bool, err error) {
	if m.Over == "" {
		is, err := e.loadDoc(ctx, m.DocName)
		if err != nil || is.Version == "" {
			return false, err
		}
		m.Over = is.Version
	}
	from, to := cas.DocChange{DocName: m.DocName, Over: m.Over}, cas.DocChange{DocName: cas.DocName{Place: m.Place, Name: m.To}, Is: m.Is}
	if m.Name == m.To {
		to.Over = m.Over
		_, err := e.submit(ctx, []write{{row: writeDoc(to)}}, nil)
		return e.renamed(ctx, to, err)
	}
	for {
		i, isNew, ok, err := e.intendAgain(ctx, to.DocName)
		if err != nil || !ok {
			return false, err
		}
		_, err = e.submit(ctx, []write{{row: writeDoc(from)}, {row: writeDoc(to)}}, nil)
		made, err := e.renamed(ctx, to, err)
		if made || err != nil {
			return made, err
		}
		// It was refused. A tombstone may be in the way, of an earlier try.
		is, err := e.loadDoc(ctx, to.DocName)
		if err != nil {
			return false, err
		}
		was, err := e.loadDoc(ctx, m.DocName)
		if err != nil {
			return false, err
		}
		if is.Version != "" || was.Version != m.Over {
			if isNew && is.Version == "" {
				e.endIntents(ctx, []intent{i})
			}
			return false, nil
		}
		to.Over = string(is.tombstone) // empty: it is gone; and the intent is written after it was read
	}
}

// renamed returns whether a rename was made, if that is known.
func (e *engine) renamed(ctx context.Context, to cas.DocChange, err error) (made bool, _ error) {
	if err == nil {
		return true, nil
	}
	if err = commitError(err); !errors.Is(err, once.ErrOutcomeUnknown) {
		if errors.Is(err, once.ErrConflict) || isStale(err) {
			return false, nil
		}
		return false, err
	}
	is, loadErr := e.loadDoc(ctx, to.DocName)
	if loadErr == nil && is.Version != "" && string(is.Text) == string(to.Is) {
		return true, nil
	}
	return false, err
}
