package seedbugs

func fleetTest() Test { return Test{"./integration/world", "^TestWorldsKeepTheLaws$/^fleet$"} }

// fleetBugs are in what several consumers do beside and after each other.
var fleetBugs = []Bug{
	{
		Name: "puts-name-the-first-of-a-batch",
		Why:  "a message that a batch puts names another message as its cause",
		File: "inbox/tx.go",
		Old:  `keys[it.Message] = it.key`,
		New:  `keys[it.Message] = items[0].key`,
		Test: Test{"./inbox", "^TestHandlersKnowTheirKey$"},
	},
	{
		Name: "a-third-consumer-has-no-queue",
		Why:  "of the consumers of a topic, only the first two get its messages",
		File: "broker/storebroker/publisher.go",
		Old:  `if !slices.Contains(q.keys[source], c.Keys) {`,
		New:  `if !slices.Contains(q.keys[source], c.Keys) && len(q.keys[source]) < 2 {`,
		Test: fleetTest(),
	},
	{
		Name: "what-is-put-with-a-position-is-lost",
		Why:  "a bridge that keeps its place in a log by a position puts nothing",
		File: "store/memstore/tx.go",
		Old:  "\t\ts.outbox.add(tx.put)\n",
		New:  "\t\tif len(tx.positions) == 0 {\n\t\t\ts.outbox.add(tx.put)\n\t\t}\n",
		Test: fleetTest(),
	},
	{
		Name: "a-retired-name-starts",
		Why:  "a consumer that was retired is started by accident, and goes on",
		File: "inbox/register.go",
		Old:  "case before.Name != \"\" && !sameSource(before.Source, self.Source):\n\t\treturn r.elsewhere(before, self)\n\tcase before.Name == \"\":",
		New:  "case before.Name != \"\" && !sameSource(before.Source, self.Source) && !store.IsRetired([]store.Consumer{before}, before.Name):\n\t\treturn r.elsewhere(before, self)\n\tcase before.Name == \"\":",
		Test: Test{"./inbox", "^TestARetiredConsumerDoesNotComeBackByItself$"},
	},
	{
		Name: "a-janitor-ends-after-a-batch",
		Why:  "a look forgets one batch, and a busy store grows for ever",
		File: "janitor/janitor.go",
		Old:  "\t\t\t\tmore = append(more, k)\n",
		New:  "\t\t\t\tmore = append(more[:0], more...)\n",
		Test: fleetTest(),
	},
	{
		Name: "a-janitor-leaves-the-shelf",
		Why:  "messages that people have decided about stay on the shelf for ever",
		File: "janitor/janitor.go",
		Old:  "ok && run.KeepShelved != Forever {",
		New:  "ok && run.KeepShelved == Forever {",
		Test: Test{"./janitor", "^TestItForgetsWhatHasHadItsTime$"},
	},
	{
		Name: "a-database-behind-the-log-is-passed-over",
		Why:  "after a failover that lost commits, a consumer with a position never handles what the database lacks",
		File: "inbox/position.go",
		Old:  `(ahead < -1 || ahead > near)`,
		New:  `ahead > near`,
		Test: fleetTest(),
	},
}
