package observe

import "github.com/effectively-once/once/internal/sight"

// Steps in the life of a key, in once.Event.Name, and of a message. In logs they are the attribute "event" of the messages
// "once: event", "outbox: event", "inbox: event" and "janitor: event", at the level debug; on spans they are events.
// [Replayed], [Done], [Rejected], [Unknown], [Parked] and [LeaseLost] are steps, too.
const (
	Claimed       = sight.Claimed     // an attempt holds the key, and its work begins
	Joined        = sight.Joined      // a call has waited in its process for another one of its key
	Refused       = sight.Refused     // a call was not let in: in progress, another input, expired or parked
	LeaseExtended = sight.Extended    // a sign of life of the holder
	Released      = sight.Released    // nothing happened, or it was rolled back: the key is free
	Asked         = sight.Asked       // it was asked what became of an unknown attempt
	Decided       = sight.Decided     // a person has decided
	Forgotten     = sight.Forgotten   // keys or messages were forgotten; "count" says how many, "kind" which
	KeyReplayed   = sight.KeyReplayed // another system has answered as it did before
	KeyConflict   = sight.KeyConflict // another system knows the key for another request

	MessagePut       = sight.MessagePut       // into an outbox, in a transaction that may still be rolled back
	MessagePublished = sight.MessagePublished // the broker has confirmed it
	MessageReceived  = sight.MessageReceived  // a consumer begins to deal with it
)

// Events are all of them.
func Events() []string {
	return []string{Claimed, Joined, Refused, LeaseExtended, LeaseLost, Done, Rejected, Replayed, Unknown, Parked, Released, Asked,
		Decided, Forgotten, KeyReplayed, KeyConflict, MessagePut, MessagePublished, MessageReceived}
}
