//go:build go1.25

package oncetest

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once/internal/sim"
)

// What lines of the history tell beside calls.
const (
	toldEffect  = "EFFECT"
	toldGivesUp = "GIVES UP"
	toldCopy    = "COMES AGAIN"
)

// What people do.
const (
	personParks    = "PARKS"
	personReplays  = "REPLAYS"
	personDiscards = "DISCARDS"
	personFrees    = "FREES"
)

// What customers do that makes trouble.
const (
	opensWindow = "opens a second window"
	comesAgain  = "comes again for the same"
	isImpatient = "leaves at the first error"
)

// told tells a story in sentences. Calls that go well are left out, and errors that
// a customer has just heard.
func told(lines []sim.Line) string {
	var b strings.Builder
	last := ""
	for _, l := range lines {
		if text := sentence(l); text != "" && (l.What != "hears" || text != last) {
			fmt.Fprintf(&b, "%10.1f  %.200s\n", l.At.Seconds(), text)
			last = text
		}
	}
	return b.String()
}

// sentence says what happened, or nothing if it needs no word.
func sentence(l sim.Line) string {
	who, _, _ := strings.Cut(l.Who, ".")
	switch l.What {
	case "DIES":
		return who + " is killed."
	case "STALLS":
		return who + " stalls " + l.Note + "."
	case "DOWN":
		return "The " + l.About + " goes down."
	case "BACK":
		return "The " + l.About + " is back."
	case "CALM":
		return "No more faults from here on."
	case toldCopy:
		return "A copy of message " + l.About + " arrives."
	case toldGivesUp:
		return who + " gives up."
	case personParks, personReplays, personDiscards:
		return fmt.Sprintf("%s %s message %s: %s.", who, strings.ToLower(l.What), l.About, l.Note)
	case personFrees:
		return fmt.Sprintf("%s frees the key of %s, because nothing has arrived.", who, l.About)
	case opensWindow, comesAgain, isImpatient:
		return who + " " + l.What + "."
	case toldEffect:
		return fmt.Sprintf("%q happens for %s.", l.Note, l.About)
	case "hears":
		return who + " hears: " + strings.TrimPrefix(l.Note, "sim: ")
	}
	if law, broken := strings.CutPrefix(l.What, "LAW "); broken {
		return fmt.Sprintf("This breaks %s: %s.", law, l.Note)
	}
	call := fmt.Sprintf("%s calls %s for %s", who, l.What, l.About)
	if l.What == "sends" || strings.Contains(l.What, " ") { // "calls charge", and no method such as "Commit"
		call = fmt.Sprintf("%s %s for %s", who, l.What, l.About)
	}
	switch {
	case strings.HasPrefix(l.Note, "arrives late: "):
		return fmt.Sprintf("The call %q of %s for %s arrives late.", l.What, who, l.About)
	case strings.HasPrefix(l.Note, "again: "):
		return fmt.Sprintf("The call %q of %s for %s arrives a second time.", l.What, who, l.About)
	}
	switch l.Fault {
	case sim.Before:
		return call + ", which fails."
	case sim.After:
		return call + ", and the reply is lost."
	case sim.Hang:
		return call + ", which never arrives and gets no reply."
	case sim.Late:
		return call + ", and gets no reply, because it arrives later."
	case sim.Twice:
		return call + ", which arrives twice."
	}
	if strings.HasPrefix(l.What, "calls ") && strings.Contains(l.Note, ErrRefused.Error()) {
		return call + ", which is refused."
	}
	return ""
}
