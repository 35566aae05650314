package outbox

import (
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"maps"
	"strconv"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// KeyHeader is [broker.KeyHeader]: the key of the unit of work that put a message.
const KeyHeader = broker.KeyHeader

// SeqHeader is [broker.SeqHeader]: a number that rises from message to message of
// an ordering key.
const SeqHeader = broker.SeqHeader

// causeOf returns the key of the unit of work that put a message, as KeyHeader
// has it. It also works for a sealed message.
func causeOf(m *store.Outgoing) string {
	if k, ok := store.ParseCause(m.Cause); ok {
		return k.String()
	}
	return m.Message.Header[KeyHeader]
}

// causedBy returns headers with the key of the cause. header may be the caller's.
func causedBy(header map[string]string, k once.Key) map[string]string {
	all := make(map[string]string, len(header)+1)
	maps.Copy(all, header)
	all[KeyHeader] = k.String()
	return all
}

// withHeaders returns a message's own headers with those of added that it lacks.
// It leaves out what a relay or an earlier Put added to another message. own is
// not changed.
func withHeaders(own, added map[string]string) map[string]string {
	_, relayed := own[SeqHeader]
	_, caused := own[KeyHeader]
	_, placed := own[broker.PlaceHeader]
	if len(added) == 0 && !relayed && !caused && !placed {
		return own
	}
	all := maps.Clone(own)
	for _, name := range []string{SeqHeader, KeyHeader, broker.PlaceHeader} {
		delete(all, name)
	}
	for name, value := range added {
		if _, there := all[name]; !there {
			if all == nil {
				all = make(map[string]string, len(added))
			}
			all[name] = value
		}
	}
	return all
}

// outbound returns a message as it is published. opened is the message without
// its sealing. One that was set aside from the log keeps the number that it had
// there.
func (e *env) outbound(m *store.Outgoing, opened broker.Message) *broker.Message {
	opened.Attempt = 0
	own := opened.Header
	opened.Header = make(map[string]string, len(own)+1)
	maps.Copy(opened.Header, own)
	opened.Header[SeqHeader] = number(m) // whatever another program has written there
	delete(opened.Header, broker.PlaceHeader)
	if place, ok := e.placeOf(&opened, own[broker.PlaceHeader]); ok {
		opened.Header[SeqHeader] = place
	}
	return &opened
}

// isForeignPlace reports whether a message has the header of one that was set
// aside from the log, although no relay has changed its row. If one has, because
// the message was delayed or held, placeOf tells that the header is not a relay's.
func isForeignPlace(m *store.Outgoing) bool {
	_, placed := m.Message.Header[broker.PlaceHeader]
	return placed && m.Changed.IsZero()
}

var errForeignPlace = errors.New("the header " + broker.PlaceHeader + " is reserved: insert the message without it")

// number is a message's number in SeqHeader.
func number(m *store.Outgoing) string {
	if m.Seq > 0 {
		return strconv.FormatInt(m.Seq, 10)
	}
	return strconv.FormatUint(m.LogPlace, 10)
}

// numbered returns the headers of a message from the log that is set aside. They
// have its place in the log, with a digest that tells the header from one of
// another program: it is keyed if the store has a Secret.
func (e *env) numbered(header map[string]string, m *store.Outgoing) map[string]string {
	all := maps.Clone(header)
	if all == nil {
		all = make(map[string]string, 1)
	}
	all[broker.PlaceHeader] = e.placed(m.Message.ID, number(m))
	return all
}

func (e *env) placed(id, place string) string {
	sum := checksum.Fingerprint(e.Store.Options().Secret, name.Digest(broker.PlaceHeader, id), []byte(place))
	return place + " " + hex.EncodeToString(sum[:8])
}

// placeOf returns the place that a relay has written into a header. A header of
// another program has none, so that it does not choose the number of its message.
func (e *env) placeOf(m *broker.Message, header string) (place string, ok bool) {
	place, _, _ = strings.Cut(header, " ")
	if _, err := strconv.ParseUint(place, 10, 64); err != nil {
		return "", false
	}
	return place, hmac.Equal([]byte(header), []byte(e.placed(m.ID, place)))
}
