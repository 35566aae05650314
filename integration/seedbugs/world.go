package seedbugs

// WorldBug is a bug that a simulated world must find: see package world.
type WorldBug struct {
	Bug
	Kind string // the kind of world that finds it soonest
}

// inWorld names the bugs that worlds must find, by kind of world.
var inWorld = []struct {
	kind string
	bugs []string
}{
	{"small", []string{
		"an-outage-uses-up-attempts",
		"consumer-acks-what-failed",
		"consumer-forgets-the-shelf-in-a-park",
		"held-messages-pass",
		"lanes-do-not-wait",
		"shelf-lease-is-not-renewed",
		"a-key-is-often-in-a-batch",
		"messages-pass-a-failed-one-of-their-key",
		"new-messages-pass-those-that-are-held",
		"unknown-run-again-without-asking",
		"not-done-ignored",
		"rows-of-a-rejection-kept",
		"steps-are-nobodys",
		"deadly-messages-are-not-counted",
		"a-consumer-ends-with-its-session",
	}},
	{"shapes", []string{
		"held-messages-of-a-batch-pass",
		"position-not-looked-at",
		"an-epoch-is-not-compared",
		"position-forgets-the-shelf",
		"a-redelivery-is-settled-before-its-message",
		"nobody-knows-who-parked-a-key-with-a-position",
	}},
	{"shelf", []string{
		"a-suspect-is-overtaken-in-the-table",
		"the-shelf-is-read-from-its-beginning-only",
		"a-copy-parks-the-key-of-what-waits",
		"shelf-renewal-without-a-reply-is-forgotten",
		"shelf-transaction-forgets-renewals",
		"a-batch-goes-to-the-shelf-out-of-order",
		"position-compared-at-the-head-only",
		"discard-beside-the-handler",
		"relay-retries-after-one-read",
	}},
	{"carried", []string{
		"storebroker-takes-whatever-the-version",
		"inbox-queue-by-name",
	}},
	{"deaths", []string{
		"an-orderly-stop-forgives-deaths",
		"outage-forgives-deaths",
		"lookup-forgives-deaths",
		"an-outage-blames-a-message",
		"failures-of-an-outage-are-kept",
		"an-outage-counts-on-the-shelf",
		"copies-that-wait-are-attempts",
	}},
	{"fleet", []string{
		"puts-name-the-first-of-a-batch",
		"a-third-consumer-has-no-queue",
		"what-is-put-with-a-position-is-lost",
		"a-retired-name-starts",
		"retired-before-the-first-message",
		"inbox-retires-over-a-queue",
		"what-comes-while-a-consumer-is-retired-stays",
		"old-messages-are-new",
		"a-janitor-ends-after-a-batch",
		"a-janitor-leaves-the-shelf",
		"a-database-behind-the-log-is-passed-over",
	}},
	{"people", []string{
		"a-process-forgets-what-it-could-not-record",
		"a-poisonous-message-is-taken-for-an-outage",
	}},
	{"relays", []string{
		"relay-publishes-from-lanes-of-others",
		"one-look-takes-the-lanes",
		"a-relay-without-the-lane-changes-messages",
		"a-relay-without-an-answer-goes-on",
		"a-call-outlives-its-lease",
		"the-end-of-a-batch-is-not-waited-for",
		"held-messages-are-not-learned-of",
		"a-chunk-survives-the-loss-of-its-lane",
		"relay-blames-messages-for-the-broker",
		"relay-keeps-its-lanes-at-the-end",
		"relays-poll-for-what-people-park",
		"a-replay-passes-pending-messages",
		"each-half-of-a-batch-is-an-attempt",
	}},
	{"decide", []string{
		"consumer-parks-nothing",
		"consumer-does-not-park-the-key",
		"discard-overrules-others",
		"replay-without-a-word",
		"early-replay-frees-an-unknown-key",
		"discard-frees-the-key",
		"discard-leaves-a-free-key",
		"a-key-is-parked-over-a-decision",
		"replay-frees-a-key-that-is-unknown-since",
	}},
	{"keys", []string{
		"own-claim-not-recognised",
		"a-recognised-claim-is-as-old-as-its-last-repeat",
		"unused-claim-not-given-back",
		"settlement-not-repeated",
		"lookup-believed-before-the-settle-time",
		"starts-on-a-lease-that-is-over",
		"own-claim-in-flight-is-a-rival",
		"end-not-recorded-when-the-caller-has-left",
		"not-done-clears-the-attempt-before",
		"panic-frees-the-key",
		"flight-never-lands",
		"stale-settlement-taken-for-applied",
		"outage-taken-for-a-refusal",
		"pending-lookup-taken-for-no",
		"validity-of-the-key-ignored",
		"validity-of-the-key-begins-anew",
		"key-forgotten-while-asking",
		"a-record-is-as-old-as-when-it-was-read",
		"a-takeover-in-flight-is-a-first-attempt",
		"own-commit-in-flight-is-a-rival",
		"lease-not-extended-in-time",
		"lost-lease-not-told",
		"lease-believed-after-its-end",
		"lease-counted-from-the-reply",
		"old-lists-are-believed",
		"what-is-old-is-given-up",
		"redelivery-skips-the-input-check",
		"input-compared-only-when-done",
		"takeover-drops-the-fingerprint",
		"answer-over-the-limit-replayed-as-empty",
		"answer-over-the-limit-committed",
		"lookup-of-another-operation-decides",
		"both-of-two-people-have-decided",
		"a-janitor-in-trouble-rests-for-days",
	}},
	{"cas", []string{
		"cas-ends-at-the-earliest-time",
		"cas-begins-at-the-latest-time",
		"cas-youngest-age",
		"cas-time-from-anybody",
		"cas-lapses-at-the-latest-time",
		"cas-lease-from-the-earliest-time",
		"cas-forgets-the-resolution",
		"cas-fence-without-owner",
		"cas-takeover-of-any-attempt",
		"cas-late-claim",
		"cas-settles-twice",
		"cas-firm-claim-writes-nothing-for-its-owner",
		"cas-firm-claim-that-lapsed",
		"cas-frees-an-unknown-outcome",
		"cas-commits-without-a-look",
		"cas-rollback-frees-a-takeover",
		"cas-keeps-a-firm-claim",
		"cas-takes-claims-back-without-a-limit",
		"cas-runs-beside-a-lost-commit",
		"cas-takes-a-lapsed-firm-claim-for-work",
		"refused-outcome-runs-again",
		"refusal-hides-an-outage",
		"refused-answer-of-lookup-asked-again",
	}},
	{"http", []string{
		"another-key-for-a-request-sent-again",
		"another-key-after-half-a-response",
		"target-after-outer-handlers",
		"not-done-lost-in-a-wrapper",
		"client-without-a-key-runs-unguarded",
		"retry-after-in-milliseconds",
	}},
}

// OfTheWorld returns the bugs that worlds must find.
func OfTheWorld() (all []WorldBug) {
	byName := make(map[string]Bug)
	for _, b := range All() {
		byName[b.Name] = b
	}
	for _, group := range inWorld {
		for _, name := range group.bugs {
			all = append(all, WorldBug{byName[name], group.kind})
		}
	}
	return all
}
