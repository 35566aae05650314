package seedbugs

var natsConformance = Test{"./integration/natsstore", "^TestConformance$"}

var natsBugs = []Bug{
	{
		Name: "nats-writes-over-anything", Why: "two callers have the same key",
		File: "store/natsstore/bucket.go",
		Old: `	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, cmp.Or(over, "0"))
	m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, b.of(every, digits))`,
		New:  `	m.Header.Set("Once-Expected", cmp.Or(over, "0")+every)`,
		Test: natsConformance,
	},
	{
		Name: "nats-forgets-the-other-subject", Why: "a key that is done is claimed again",
		File: "store/natsstore/bucket.go",
		Old:  `m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, b.of(every, digits))`,
		New:  `m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, b.of(kindOf(&row), digits))`,
		Test: Test{"./integration/natsstore", "^TestRoundTrips$"},
	},
	{
		Name: "nats-open-keys-expire", Why: "work whose outcome is unknown runs again as if it were new",
		File: "store/natsstore/bucket.go",
		Old:  `if at, expires := row.Expires(); expires {`,
		New:  `if at, _ := row.Expires(); true {`,
		Test: Test{"./integration/natsstore", "^TestOpenKeysNeverExpire$"},
	},
	{
		Name: "nats-deletes-at-once", Why: "a replica whose clock is ahead forgets keys early",
		File: "store/natsstore/bucket.go",
		Old:  `max(0, left) + reserve + time.Second`,
		New:  `max(0, left) + time.Second`,
		Test: Test{"./store/natsstore", "^TestMessagesAreKeptAsLongAsTheirKeys$"},
	},
	{
		Name: "nats-gives-up-on-a-write-in-flight", Why: "calls fail while a stream chooses its leader",
		File: "store/natsstore/bucket.go",
		Old:  `if is.Version != over {`,
		New:  `if is.Version != over || true {`,
		Test: Test{"./store/natsstore", "^TestAWriteInFlightIsWaitedFor$"},
	},
	{
		Name: "nats-asks-replicas", Why: "a replica that is late answers for a key that others have claimed",
		File: "store/natsstore/stream.go",
		Old:  `case c.AllowDirect:`,
		New:  `case false:`,
		Test: Test{"./store/natsstore", "^TestOnlyStreamsThatKeepKeysAreAccepted$"},
	},
	{
		Name: "nats-reads-the-clock-of-the-client", Why: "a client whose clock is wrong takes the key of a call that runs",
		File: "store/natsstore/stream.go",
		Old:  `b.clock.Learn(sent, info.TimeStamp, 1)`,
		New:  `b.clock.Learn(sent, time.Now(), 1)`,
		Test: Test{"./integration/natsstore", "^TestTheClockOfTheServerDecides$"},
	},
	{
		Name: "nats-large-outcomes-fail", Why: "work that is done is never recorded",
		File: "store/natsstore/bucket.go",
		Old:  `errors.Is(err, nats.ErrMaxPayload) || `,
		New:  ``,
		Test: Test{"./integration/natsstore", "^TestAnOutcomeThatIsTooLargeIsRecordedWithoutItsBody$"},
	},
	{
		Name: "nats-lists-a-sixteenth", Why: "stuck keys are not found",
		File: "store/natsstore/list.go",
		Old:  `range hexDigits[first:] {`,
		New:  `range hexDigits[first:min(first+1, 16)] {`,
		Test: natsConformance,
	},
	{
		Name: "nats-leaves-messages-behind", Why: "keys that are done are listed until they are forgotten, and then unknown",
		File: "store/natsstore/list.go",
		Old:  `err == nil && left.Sequence < latest`,
		New:  `err == nil && left.Sequence > latest`,
		Test: Test{"./integration/natsstore", "^TestListAndForgetDeleteWhatSettlementsLeaveBehind$"},
	},
	{
		Name: "nats-damage-frees-a-key", Why: "work runs again because its record is damaged",
		File: "store/natsstore/record.go",
		Old:  `Status:  -1,`,
		New:  `Status:  once.Absent,`,
		Test: Test{"./integration/natsstore", "^TestDamagedRecords$"},
	},
	{
		Name: "nats-silence-as-a-refusal", Why: "work that was recorded is reported as taken over by another call",
		File: "store/natsstore/bucket.go",
		Old:  `	return fmt.Errorf("natsstore: %w", err)`,
		New:  `	return fmt.Errorf("%w: natsstore: %w", once.ErrLeaseLost, err)`,
		Test: Test{"./integration/history", "^TestHistories$/^natsstore$"},
	},
}
