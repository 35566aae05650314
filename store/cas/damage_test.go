package cas_test

import (
	"bytes"
	"context"
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
		all = append(all, storetest.Damage{
			Name:   name,
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
	return all
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
