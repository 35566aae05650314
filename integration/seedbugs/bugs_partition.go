package seedbugs

// manyBugs are in the claims of the store on PostgreSQL that go together.
var manyBugs = []Bug{
	{
		Name: "claim-that-goes-along-won-by-another",
		Why:  "of two calls with one key that go in one statement, the wrong one is told that it has won, and neither can settle",
		File: "store/pgstore/coalesce.go",
		Old:  "if places[key] != nil {\n",
		New:  "if places[key] != nil && w == nil {\n",
		Test: onPostgres("^TestClaimsThatWaitGoTogether$"),
	},
	{
		Name: "all-that-go-together-win",
		Why:  "work of a key that is another's runs",
		File: "store/pgstore/coalesce.go",
		Old:  "w, at := places[key], time.UnixMicro(created)\n\t\tw.won = true\n",
		New:  "w, at := places[key], time.UnixMicro(created)\n\t\tfor _, w := range batch {\n\t\t\tw.won = true\n\t\t}\n",
		Test: onPostgres("^TestClaimsThatWaitGoTogether$"),
	},
	{
		Name: "plain-claims-go-with-soft-ones",
		Why:  "a claim that has to be on the disk before its effect is lost with the machine, and the effect happens twice",
		File: "store/pgstore/coalesce.go",
		Old:  "at := &c.waiting[index(r.Soft)]\n\t*at = append(*at, w)\n",
		New:  "at := &c.waiting[1]\n\t*at = append(*at, w)\n",
		Test: onPostgres("^TestClaimsThatWaitGoTogether$"),
	},
	{
		Name: "claim-of-one-who-left-is-sent",
		Why:  "a key is held for a whole lease by a caller that has gone",
		File: "store/pgstore/coalesce.go",
		Old:  "\tif i >= 0 {\n\t\t*at = slices.Concat((*at)[:i], (*at)[i+1:])\n\t}\n",
		New:  "",
		Test: onPostgres("^TestACallerLeavesTheClaimsThatGoTogether$"),
	},
	{
		Name: "several-keys-without-their-locks",
		Why:  "two transactions with several keys run the work of one of them at the same time, and one is rolled back at its end",
		File: pgStatements,
		Old:  "SELECT u.nth, pg_try_advisory_xact_lock(u.lock), (SELECT",
		New:  "SELECT u.nth, u.lock IS NOT NULL, (SELECT",
		Test: onPostgres("^TestSeveralMeetATransactionInFlight$"),
	},
	{
		Name: "one-key-twice-in-a-transaction",
		Why:  "both of two claims of one key in a transaction win, and its commit fails",
		File: "store/pgstore/reserve.go",
		Old:  "if seen[keys[i]] {",
		New:  "if seen[keys[i]] && len(rs) == 1 {",
		Test: onPostgres("^TestSeveralWithOneKeyTwice$"),
	},
	{
		Name: "overtaken-by-a-commit-not-noticed",
		Why:  "a call is given the error that its work met over the rows of the first, instead of the first answer",
		File: "store/pgstore/reserve.go",
		Old:  "return err == nil && found",
		New:  "return err != nil && found",
		Test: onPostgres("^TestSeveralFailOverTheRowsOfARival$"),
	},
	{
		Name: "unsettled-key-of-several-is-free",
		Why:  "a claim that its transaction has left open is no claim once it is committed",
		File: "store/pgstore/ending.go",
		Old:  "set: once.Settlement{Status: once.Running}}",
		New:  "set: once.Settlement{Status: once.Absent}}",
		Test: onPostgres("^TestSeveralInEachExecMode$"),
	},
	{
		Name: "outcome-of-another-key-of-several",
		Why:  "the record of a key gets the outcome of its neighbour in the transaction, and a duplicate that answer",
		File: "store/pgstore/ending.go",
		Old:  " && equal(e.set.Outcome, f.set.Outcome)",
		New:  "",
		Test: onPostgres("^TestSeveralWithEndingsOfTheirOwn$"),
	},
	{
		Name: "unknown-key-of-several-not-taken-over",
		Why:  "a message whose last attempt ended in doubt is never handled in a batch",
		File: pgStatements,
		Old:  "(r.status IN (0, 2) OR r.status = 1 AND r.lease_until <= now)",
		New:  "(r.status = 1 AND r.lease_until <= now)",
		Test: onPostgres("^TestSeveralMeetWhatOneMeets$"),
	},
}

// softBugs are in what does not wait for the disk.
var softBugs = []Bug{
	{
		Name: "end-of-work-as-soft-as-its-claim",
		Why:  "an answer that was given is forgotten when the database dies, and the work is sent again",
		File: pgStatements,
		Old:  "AND NOT (r.status = 3 AND $4::smallint = 2)`\n\n\t// settleSQL counts",
		New:  "AND NOT (r.status = 3 AND $4::smallint = 2) AND set_config('synchronous_commit', 'off', true) = 'off'`\n\n\t// settleSQL counts",
		Test: Test{"./integration/crash", "^TestOnlyTheClaimIsSoft$"},
	},
	{
		Name: "soft-claim-waits-for-the-disk",
		Why:  "SoftClaim changes nothing: each claim costs a flush",
		File: pgStatements,
		Old:  "AND set_config('synchronous_commit', 'off', true) = 'off'",
		New:  "AND set_config('synchronous_commit', 'on', true) = 'on'",
		Test: Test{"./integration/crash", "^TestOnlyTheClaimIsSoft$"},
	},
}

// partitionBugs are in the store on PostgreSQL that forgets by dropping partitions.
var partitionBugs = []Bug{
	{
		Name: "other-partitions-not-looked-into",
		Why:  "a key that is in an older partition is run again",
		File: "store/pgstore/partition.go",
		Old:  "{unseen}\", unseenSQL}",
		New:  "{unseen}\", \"\"}",
		Test: onPostgres("^TestDuplicatesBesideRotation$|^TestRecordsInOldPartitions$"),
	},
	{
		Name: "claim-does-not-look-into-other-partitions",
		Why:  "a key that is in an older partition is claimed again",
		File: "store/pgstore/partition.go",
		Old:  " AND NOT EXISTS (SELECT FROM {table} u WHERE u.key = $1::uuid)`",
		New:  "`",
		Test: onPostgres("^TestRecordsInOldPartitions$"),
	},
	{
		Name: "wrong-isolation-level-accepted",
		Why:  "in a transaction with an old snapshot a record is not seen, and its work runs again",
		File: "store/pgstore/partition_claim.go",
		Old:  "if level != string(pgx.ReadCommitted) {",
		New:  "if level == \"\" {",
		Test: onPostgres("^TestPartitionsNeedReadCommitted$"),
	},
	{
		Name: "open-claims-dropped",
		Why:  "work that is not settled is forgotten with its partition, and runs again",
		File: "store/pgstore/partition_forget.go",
		Old:  "case has.kept+has.open > 0:",
		New:  "case has.kept > 0:",
		Test: onPostgres("^TestForgetDropsPartitions$|^TestPartitionOfClaimInFlight$"),
	},
	{
		Name: "kept-keys-dropped",
		Why:  "a duplicate that comes within KeepKey runs",
		File: "store/pgstore/partition_forget.go",
		Old:  "case has.kept+has.open > 0:",
		New:  "case has.open > 0:",
		Test: onPostgres("^TestDuplicatesBesideRotation$"),
	},
	{
		Name: "partition-added-beside-claims-in-flight",
		Why:  "a transaction that has begun goes on without the new partition, and does not find the keys in it",
		File: "store/pgstore/partition.go",
		Old:  "LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE",
		New:  "LOCK TABLE ONLY {table} IN SHARE UPDATE EXCLUSIVE MODE",
		Test: onPostgres("^TestPartitionOfClaimInFlight$|^TestForgetBesideLongTransaction$"),
	},
}
