package cas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/storetest"
)

var errDamage = fmt.Errorf("%w: damaged by a test", once.ErrCorrupt)

// damage changes the document that a function names, of those that have a text.
func (t *table) damage(is func(name string, text []byte) bool, change func(cas.Doc) cas.Doc) error {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for at, doc := range t.Docs {
		if is(at.Name, doc.Text) {
			doc.Version += "+"
			t.Docs[at] = change(doc)
			return nil
		}
	}
	return errors.New("there is no such document")
}

func (t *table) damages() (all []storetest.Damage) {
	for name, change := range map[string]func(cas.Doc) cas.Doc{
		"no JSON":     func(d cas.Doc) cas.Doc { return cas.Doc{Text: []byte("{" + string(d.Text)), Version: d.Version} },
		"another one": func(d cas.Doc) cas.Doc { return cas.Doc{Text: []byte("[]"), Version: d.Version} },
		"nothing":     func(d cas.Doc) cas.Doc { return cas.Doc{Text: []byte{}, Version: d.Version} },
		"its end is gone": func(d cas.Doc) cas.Doc {
			return cas.Doc{Text: d.Text[:len(d.Text)/4], Version: d.Version}
		},
		"no document": func(d cas.Doc) cas.Doc { return cas.Doc{Version: d.Version, Damage: errDamage} },
	} {
		whole := func(doc string) func(context.Context) error {
			return func(context.Context) error {
				return t.damage(func(name string, _ []byte) bool { return name == doc }, change)
			}
		}
		undoable := func(doc string) (func(context.Context) error, error) {
			var was cas.Doc
			is := func(name string, _ []byte) bool { return name == doc }
			err := t.damage(is, func(d cas.Doc) cas.Doc { was = d; return change(d) })
			return func(context.Context) error { return t.damage(is, func(cas.Doc) cas.Doc { return was }) }, err
		}
		all = append(all, storetest.Damage{
			Name:     name,
			Registry: func(context.Context) (func(context.Context) error, error) { return undoable("consumers") },
			Position: func(ctx context.Context, consumer, partition string) error {
				return whole(fmt.Sprintf("position/%x/%x", consumer, partition))(ctx)
			},
			Partitions: func(_ context.Context, consumer string) (func(context.Context) error, error) {
				return undoable(fmt.Sprintf("partitions/%x", consumer))
			},
			Leases: whole("lanes"),
			Shelf:  whole("shelf"),
			Outgoing: func(_ context.Context, id string) error {
				return t.damage(func(name string, text []byte) bool {
					return strings.HasPrefix(name, "out/") && bytes.Contains(text, fmt.Appendf(nil, "%q", id))
				}, change)
			},
			Shelved: func(_ context.Context, consumer, id string) error {
				return t.damage(func(name string, text []byte) bool {
					return strings.HasPrefix(name, fmt.Sprintf("shelf/%x/", consumer)) && bytes.Contains(text, fmt.Appendf(nil, `"ID":%q`, id))
				}, change)
			},
		}, storetest.Damage{
			Name: name + ", in a part",
			Shelved: func(_ context.Context, consumer, id string) error {
				var part string
				err := t.damage(func(name string, text []byte) bool {
					part = name + "/0"
					return strings.HasPrefix(name, fmt.Sprintf("shelf/%x/", consumer)) && bytes.Contains(text, fmt.Appendf(nil, `"ID":%q`, id))
				}, func(d cas.Doc) cas.Doc { return d })
				if err != nil {
					return err
				}
				return t.damage(func(name string, _ []byte) bool { return name == part }, change)
			},
		})
	}
	for _, row := range []string{`7`, `null`, `[]`, `{}`, `{"Name":7,"Source":"queue b","Keys":KEYS,"Seen":1}`, `{"Name":"NAME","Source":"queue b","Seen":1}`,
		`{"Name":"NAME","Source":null,"Keys":"","Seen":1}`, `{"Name":"NAME","Keys":"","Source":"queue b","Seen":1}`,
		`{"Name":"NAME","Source":"queue b","Keys":KEYS,"Seen":"now"}`, `{"Name":"NAME","Source":"queue b","Keys":KEYS}`,
		`{"Name":"NAME","Source":"queue b","Keys":KEYS,"Seen":-1}`} {
		all = append(all, storetest.Damage{Name: "a consumer: " + row, Consumer: func(_ context.Context, name string) (func(context.Context) error, error) {
			var was, is []byte
			exchange := func(from, to *[]byte) error {
				return t.damage(func(name string, _ []byte) bool { return name == "consumers" }, func(d cas.Doc) cas.Doc {
					return cas.Doc{Text: bytes.Replace(d.Text, *from, *to, 1), Version: d.Version}
				})
			}
			var rows []json.RawMessage
			if err := json.Unmarshal(t.text("consumers"), &rows); err != nil {
				return nil, err
			}
			for _, text := range rows {
				var of struct{ Name, Keys string }
				if json.Unmarshal(text, &of) == nil && of.Name == name {
					was, is = text, []byte(row)
					is = bytes.Replace(is, []byte("NAME"), []byte(name), 1)
					is = bytes.Replace(is, []byte("KEYS"), fmt.Appendf(nil, "%q", of.Keys), 1)
				}
			}
			if was == nil {
				return nil, errors.New("there is no such consumer")
			}
			return func(context.Context) error {
				if !bytes.Contains(t.text("consumers"), is) { // it was repaired
					return nil
				}
				return exchange(&is, &was)
			}, exchange(&was, &is)
		}})
	}
	for _, from := range []string{`"Log":"log 1"`, `"Offset":5`, `"Epoch":1`, `"Digest":[`, `"Consumer":"`, `"Partition":"`} {
		for _, to := range []string{`"Other":` + from[strings.Index(from, ":")+1:], strings.Replace(from, `":`, `":null,"Was":`, 1)} {
			all = append(all, storetest.Damage{Name: "a position: " + to, Position: func(_ context.Context, consumer, partition string) error {
				return t.damage(func(name string, _ []byte) bool { return name == fmt.Sprintf("position/%x/%x", consumer, partition) }, func(d cas.Doc) cas.Doc {
					return cas.Doc{Text: bytes.Replace(d.Text, []byte(from), []byte(to), 1), Version: d.Version}
				})
			}})
		}
	}
	return append(all, storetest.Damage{Name: "the document of a position is gone", Position: func(_ context.Context, consumer, partition string) error {
		t.Mu.Lock()
		defer t.Mu.Unlock()
		delete(t.Docs, cas.DocName{Name: fmt.Sprintf("position/%x/%x", consumer, partition)})
		return nil
	}})
}

// text returns that of a document.
func (t *table) text(name string) []byte {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Docs[cas.DocName{Name: name}].Text
}

// One damaged document of a message keeps no other message from being published,
// tried again, or listed.
func TestConformanceBesideDamage(t *testing.T) {
	at := newTable()
	h := harness(at, func(*shop) {})
	h.Open = func(testing.TB) once.TxStore[*batch] { return openPress(at) }
	h.Damages = at.damages()
	for _, c := range storetest.TxCases(t, h) {
		if strings.HasPrefix(c.Name, "damage/") {
			t.Run(c.Name, func(t *testing.T) {
				if err := c.Check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
