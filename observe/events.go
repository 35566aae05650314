package observe

// Steps in the life of a key, in once.Event.Name, and of a message. In logs they are the attribute "event" of the messages
// "once: event", "outbox: event", "inbox: event" and "janitor: event", at the level debug; on spans they are events.
// [Replayed], [Done], [Rejected], [Unknown], [Parked] and [LeaseLost] are steps, too.
const (
	Claimed       = "claimed"        // an attempt holds the key, and its work begins
	Joined        = "joined"         // a call has waited in its process for another one of its key
	Refused       = "refused"        // a call was not let in: in progress, another input, expired or parked
	LeaseExtended = "lease_extended" // a sign of life of the holder
	Released      = "released"       // nothing happened, or it was rolled back: the key is free
	Asked         = "asked"          // it was asked what became of an unknown attempt
	Decided       = "decided"        // a person has decided
	Forgotten     = "forgotten"      // keys or messages were forgotten; "count" says how many, "kind" which
	KeyReplayed   = "key_replayed"   // another system has answered as it did before
	KeyConflict   = "key_conflict"   // another system knows the key for another request

	MessagePut       = "message_put"       // into an outbox, in a transaction that may still be rolled back
	MessagePublished = "message_published" // the broker has confirmed it
	MessageReceived  = "message_received"  // a consumer begins to deal with it
)

// Events are all of them.
func Events() []string {
	return []string{Claimed, Joined, Refused, LeaseExtended, LeaseLost, Done, Rejected, Replayed, Unknown, Parked, Released, Asked,
		Decided, Forgotten, KeyReplayed, KeyConflict, MessagePut, MessagePublished, MessageReceived}
}
