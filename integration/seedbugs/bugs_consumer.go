package seedbugs

// consumerBugs are in how people rename and retire consumers.
var consumerBugs = []Bug{
	{
		Name: "rename-changes-the-keys", Why: "everything that the consumer has handled is handled again under its new name",
		File: "store/registryedit.go",
		Old:  "				row.Name = name\n",
		New:  "				row.Name, row.Keys = name, name\n",
		Test: Test{"./inbox", "^TestProcessesOfBothNamesShareTheirWork$/^tx$"},
	},
	{
		Name: "rename-takes-another-name", Why: "two consumers become one, which takes the messages of the one for handled by the other",
		File: "store/registryedit.go",
		Old:  "if len(merged) > 0 && merged[0].Keys != row.Keys {",
		New:  "if len(merged) > 1<<20 && merged[0].Keys != row.Keys {",
		Test: Test{"./store/memstore", "^TestConformance$/^registry$/^rename-refused$"},
	},
	{
		Name: "retires-a-consumer-at-work", Why: "a consumer is retired under its running processes, which stop",
		File: "store/registryedit.go",
		Old:  "case row.Seen < r.Silence:",
		New:  "case row.Seen < 0*r.Silence:",
		Test: Test{"./store/memstore", "^TestConformance$/^registry$/^retire-refused$"},
	},
	{
		Name: "retires-over-the-shelf", Why: "messages that nobody has handled or given up stay on the shelf of a retired consumer",
		File: "store/sqlschema/consuming/registryedit.go",
		Old:  "case inUse != 0:",
		New:  "case inUse < 0:",
		Test: onEngine(sqlite + "registry/retire-refused"),
	},
	{
		Name: "retired-positions-go-on", Why: "a retired consumer that is started again reads on from where it was, or a process that was paused does",
		File: "store/sqlschema/consuming/statements.go",
		Old:  "CASE WHEN log_name = '' THEN log_name ELSE @log END",
		New:  "CASE WHEN @log = '' THEN @log ELSE log_name END",
		Test: onEngine(sqlite + "registry/retire-positions"),
	},
	{
		Name: "retired-before-the-first-message", Why: "a consumer that is brought back passes over the first message of a partition, as nothing tells that it had handled none",
		File: "store/memstore/registryedit.go",
		Old:  `if p.Log != "" {`,
		New:  `if p.Log != store.RetiredLog {`,
		Test: Test{"./store/memstore", "^TestConformance$/^registry$/^retire-positions$"},
	},
	{
		Name: "old-name-knows-of-no-other", Why: "under its old name, a consumer takes messages that it handled under the new one for new, once their keys have expired",
		File: "inbox/register.go",
		Old:  "if !slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Keys == self.Keys }) {",
		New:  "if !slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Keys == self.Keys && c.Name == self.Name }) {",
		Test: Test{"./inbox", "^TestUnderAnotherNameAnOldMessageIsStillOld$"},
	},
	{
		Name: "paused-process-outlives-its-consumer", Why: "a process that was paused while its consumer was retired works on",
		File: "inbox/register.go",
		Old:  "err == nil && retired {",
		New:  "err != nil && retired {",
		Test: Test{"./inbox", "^TestAPausedProcessOfARetiredConsumerEnds$"},
	},
	{
		Name: "console-retires-what-was-not-shown", Why: "messages that were parked after a person has looked are given up",
		File: "console/consumerchange.go",
		Old:  `if v.r.PostForm.Get("version") != e.seal(found) {`,
		New:  `if v.r.PostForm.Get("version") == "" && e.seal(found) != "" {`,
		Test: console("^TestAConsumerThatHasChangedIsLeftAlone$"),
	},
}
