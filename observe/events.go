package observe

// Steps in the life of a key, in once.Event.Name, and of a message. In logs
// they are the attribute "event" of the messages "once: event", "outbox:
// event", "inbox: event" and "janitor: event", at level debug. On spans they
// are events. [Replayed], [Done], [Rejected], [Unknown], [Parked] and
// [LeaseLost] are steps too.
const (
	Claimed       = "claimed"        // an attempt has claimed the key, and its work begins
	Joined        = "joined"         // a call waited in its process for another call with its key
	Refused       = "refused"        // a call was refused: in progress, another input, expired or parked
	LeaseExtended = "lease_extended" // the holder extended its lease
	Released      = "released"       // the work had no effect or was rolled back: the key is free
	Asked         = "asked"          // Ask looked into an unknown attempt
	Decided       = "decided"        // a person decided
	Forgotten     = "forgotten"      // keys or messages were forgotten; "count" says how many, "kind" which
	KeyReplayed   = "key_replayed"   // another system repeated its earlier answer
	KeyConflict   = "key_conflict"   // another system knows the key for another request

	MessagePut       = "message_put"       // into an outbox, in a transaction that may still be rolled back
	MessagePublished = "message_published" // the broker has confirmed it
	MessageReceived  = "message_received"  // a consumer begins to handle it
)

// Events returns all steps.
func Events() []string {
	return []string{Claimed, Joined, Refused, LeaseExtended, LeaseLost, Done, Rejected, Replayed, Unknown, Parked, Released, Asked,
		Decided, Forgotten, KeyReplayed, KeyConflict, MessagePut, MessagePublished, MessageReceived}
}
