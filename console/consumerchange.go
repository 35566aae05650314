package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

const (
	maxDiscarded = 1000        // messages on the shelf, in each state, that retiring gives up here
	editTime     = time.Minute // for changing a consumer, with the messages that are given up
)

// consumerEdit is what a person wants to change about a consumer.
type consumerEdit struct {
	Store, Name string
	Do          string // rename or retire
	To          string // of rename
	Discard     bool   // of retire
	Reason      string
	Problem     string // what is wrong with it
}

// deed is what was done, for the audit.
func (e consumerEdit) deed() string {
	if e.Do == "rename" {
		return "renamed consumer " + legible.Line(e.Name) + " to " + legible.Line(e.To)
	}
	return "retired consumer " + legible.Line(e.Name)
}

// editOf reads the form of a consumer's page.
func (v *view) editOf() (e consumerEdit) {
	form := v.r.PostForm
	e = consumerEdit{Store: form.Get("store"), Name: form.Get("name"), Do: form.Get("do"), To: strings.TrimSpace(form.Get("to")),
		Discard: form.Get("discard") == "yes", Reason: strings.TrimSpace(name.Line(form.Get("reason"), maxForm))}
	switch {
	case e.Do == "rename" && e.To == "":
		e.Problem = "Give the new name."
	case e.Reason == "":
		e.Problem = "Give a reason: why, and how you know."
	case len(e.Reason) > longestReason:
		e.Problem = fmt.Sprintf("The reason has %d bytes, but only %d are stored: shorten it.", len(e.Reason), longestReason)
	}
	return e
}

// carry carries out an edit, or finds out what it would change if dry is set.
func (v *view) carry(ctx context.Context, s Store, e consumerEdit, dry bool) (inbox.ConsumerChange, error) {
	of, ok := once.As[inbox.AdminStore](s.Store)
	if !ok {
		return inbox.ConsumerChange{}, fmt.Errorf("%w: it has no shelf", errors.ErrUnsupported)
	}
	admin, by := inbox.Admin{Store: of}, inbox.Decision{By: v.who.Name, Reason: e.Reason, DryRun: dry}
	if e.Do == "rename" {
		return admin.Rename(ctx, e.Name, e.To, by)
	}
	if e.Discard { // no more of them than a person can look at
		counting := by
		counting.DryRun = true
		found, err := admin.Retire(ctx, e.Name, false, counting)
		if found.Waiting >= maxDiscarded || found.Parked >= maxDiscarded {
			return found, store.ConsumerStateError("it has %s messages or more on the shelf. Discard the parked ones first, as a job on the page Parked messages, or use once consumers retire",
				plus(maxDiscarded, false))
		}
		if err != nil && found.Waiting+found.Parked == 0 {
			return found, err
		}
	}
	return admin.Retire(ctx, e.Name, e.Discard, by)
}

// seal names what a person was shown: if it has changed, nothing is done.
func (e consumerEdit) seal(found inbox.ConsumerChange) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %v %q %q", e.Store, e.Do, e.Name, e.To, e.Discard, e.Reason, found.Keys)
	for _, rows := range [][]store.Consumer{found.Rows, found.Into} {
		for _, row := range rows {
			fmt.Fprintf(h, " %q %q", row.Name, row.Source)
		}
		fmt.Fprint(h, ";")
	}
	if e.Do == "retire" { // a rename moves nothing of these
		fmt.Fprintf(h, "%d %d", found.Waiting, found.Parked)
		for _, p := range found.Positions {
			fmt.Fprintf(h, " %q %q %d", p.Partition, p.Log, p.Offset)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// consumerConfirmPage repeats what will change.
type consumerConfirmPage struct {
	Edit consumerEdit
	inbox.ConsumerChange
	Sources, Joined []consumerRow
	AtWork          bool
	Version, Back   string
	Open            int // messages on the shelf
}

// Place counts the positions.
func (p consumerConfirmPage) Place() string {
	if len(p.Positions) == 1 {
		return "1 position"
	}
	return plus(len(p.Positions), false) + " positions"
}

// Ends are the first positions that end.
func (p consumerConfirmPage) Ends() []store.Position {
	return p.Positions[:min(len(p.Positions), maxSamples)]
}

// Many reports whether more messages are open than were counted.
func (p consumerConfirmPage) Many() bool {
	return p.Waiting >= maxDiscarded || p.Parked >= maxDiscarded
}

// editable returns the edit of a form and the store that it is about. If it is of
// no use, ok is false and the person is told.
func (v *view) editable() (e consumerEdit, s Store, ok bool) {
	e = v.editOf()
	s, _, ok = capable[store.RegistryEditor](v, e.Store)
	if !ok || e.Store == "" || e.Name == "" || e.Do != "rename" && e.Do != "retire" {
		v.fail(http.StatusNotFound, "This cannot be done here", "The form is damaged, or the store cannot change its consumers. Begin at the list of consumers.")
		return e, s, false
	}
	if e.Problem != "" {
		v.showConsumer(http.StatusUnprocessableEntity, e)
		return e, s, false
	}
	return e, s, true
}

// confirmConsumer repeats an edit, and what exactly it will change.
func (v *view) confirmConsumer() {
	e, s, ok := v.editable()
	if !ok {
		return
	}
	ctx, cancel := v.within()
	defer cancel()
	found, err := v.carry(ctx, s, e, true)
	if err != nil {
		v.refuseEdit(s, e, err)
		return
	}
	p := consumerConfirmPage{Edit: e, ConsumerChange: found, Sources: v.consumerRows(s, found.Rows), Joined: v.consumerRows(s, found.Into),
		AtWork: found.Seen < inbox.RetireSilence, Version: e.seal(found), Back: v.consumerLink(s.Name, e.Name), Open: found.Waiting + found.Parked}
	v.render(http.StatusOK, "consumerconfirm", page{Title: e.title(), Nav: "consumers", Body: p})
}

func (e consumerEdit) title() string {
	if e.Do == "rename" {
		return "Rename this consumer"
	}
	return "Retire this consumer"
}

// editConsumer carries out an edit that a person has confirmed. Those of one console
// are made one after the other, so that the second of two people is told.
func (v *view) editConsumer() {
	v.editing.Lock()
	defer v.editing.Unlock()
	e, s, ok := v.editable()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), editTime) // a browser that leaves does not end it half way
	defer cancel()
	found, err := v.carry(ctx, s, e, true)
	if err != nil {
		v.refuseEdit(s, e, err)
		return
	}
	if v.r.PostForm.Get("version") != e.seal(found) {
		e.Problem = "Nothing was changed: this consumer has changed since you looked at it. This is how it is now."
		v.showConsumer(http.StatusConflict, e)
		return
	}
	found, err = v.carry(ctx, s, e, false)
	about := deed{What: e.deed(), Store: s.Name, Reason: e.Reason, consumer: e.now()}
	attrs := []any{"consumer", e.Name, "keys", found.Keys, "discarded", found.Discarded.Changed}
	switch {
	case err != nil && found.Discarded.Changed > 0:
		about.What = fmt.Sprintf("discarded %d messages of consumer %s, which was to be retired", found.Discarded.Changed, legible.Line(e.Name))
		v.record(about, append(attrs, "error", err)...)
		v.fail(http.StatusServiceUnavailable, "It is half done", fmt.Sprintf("%d messages were discarded. Then the store %s said: %s. Open the consumer again: the same change does the rest.",
			found.Discarded.Changed, s.Name, legible.Text(err.Error())))
		return
	case refusedEdit(err):
		v.refuseEdit(s, e, err)
		return
	case err != nil:
		about.What = "tried: " + e.deed()
		v.record(about, append(attrs, "error", err)...)
		v.fail(http.StatusServiceUnavailable, "It is not known whether this was done", "The store "+s.Name+" did not answer: "+legible.Text(err.Error())+
			". Look at the list of consumers when it is back.")
		return
	}
	v.record(about, attrs...)
	v.seeOther(v.consumerLink(s.Name, e.now()))
}

// now is the name after the edit.
func (e consumerEdit) now() string {
	if e.Do == "rename" {
		return e.To
	}
	return e.Name
}

// refusedEdit reports whether an error says that nothing was changed, and why.
func refusedEdit(err error) bool {
	return errors.Is(err, store.ErrConsumerState) || errors.Is(err, store.ErrNoConsumer) || errors.Is(err, once.ErrInvalid) || errors.Is(err, errors.ErrUnsupported)
}

// refuseEdit says why an edit cannot be done.
func (v *view) refuseEdit(s Store, e consumerEdit, err error) {
	switch {
	case errors.Is(err, store.ErrNoConsumer):
		v.fail(http.StatusNotFound, "There is no consumer "+legible.Line(e.Name)+" any more", "Nothing was changed. Somebody may have renamed it: see the list of consumers.")
	case errors.Is(err, store.ErrShelfInUse):
		e.Problem = "Nothing was changed: it has messages on the shelf that were not handled. Have them handled, or choose below that they are given up."
		v.showConsumer(http.StatusConflict, e)
	case refusedEdit(err):
		e.Problem = "Nothing was changed. " + legible.Text(err.Error()) + "."
		v.showConsumer(http.StatusConflict, e)
	default:
		v.silent(s, err)
	}
}

func (c *Console) consumerLink(store, called string) string {
	return c.link("/consumers/one", "store", store, "name", called)
}

// consumerEdits says what a person may change about a consumer.
type consumerEdits struct {
	Retired bool
	CanEdit bool
	Rebuild bool   // it follows the name of its consumer
	Why     string // not
	Edit    consumerEdit
}

func (v *view) editsOf(s Store, called string, rows []store.Consumer, e consumerEdit) consumerEdits {
	_, able := once.As[store.RegistryEditor](s.Store)
	_, admin := once.As[inbox.AdminStore](s.Store)
	edits := consumerEdits{Retired: store.IsRetired(rows, called), Edit: e, Rebuild: strings.Contains(called, "@")}
	switch {
	case edits.Retired:
		edits.Why = "It is retired. If a program starts with this name, it gets an error that says so, and how it can continue."
	case !able || !admin:
		edits.Why = "This store cannot change its consumers. A program renames its consumer with RenamedFrom."
	case !v.o.Write:
		edits.Why = "The console is read-only, so a consumer can be neither renamed nor retired here. Start it with Write, or use once consumers."
	case v.who.Role < Administer:
		edits.Why = "To rename or retire a consumer, you need the role administer."
	default:
		edits.CanEdit = true
	}
	if e.Problem != "" && !edits.CanEdit {
		v.notes = append(v.notes, note{Bad: true, Text: e.Problem})
	}
	return edits
}

// consumerNews says what the person has just done about a consumer.
func (v *view) consumerNews(store, called string) {
	all := v.trail.latest()
	for _, d := range all[:min(len(all), 20)] { // the rest is older than a minute, or others were busy
		if d.consumer == called && d.Store == store && d.By == v.who.Name && v.now().Sub(d.At) <= time.Minute {
			v.notes = append(v.notes, note{Good: !strings.HasPrefix(d.What, "tried"), Text: "You have " + d.What + ". It is in the audit."})
			return
		}
	}
}
