package seedbugs

// listBugs are in the pages of lists.
var listBugs = []Bug{
	{
		Name: "a-short-page-is-the-last",
		Why:  "a list misses records of an operation that is rare among many others",
		File: "store/sqlschema/records/list.go",
		Old:  "			page.Next = next\n",
		New:  "",
		Test: onPostgres("^TestPagesAreBoundedWork$/^one_table$"),
	},
	{
		Name: "all-is-read-for-what-is-open",
		Why:  "each pass of a reconciler reads all done records",
		File: "store/sqlschema/records/list.go",
		Old:  "	case isOpen(l.Statuses):",
		New:  "	case isOpen(l.Statuses[:0]):",
		Test: onPostgres("^TestPagesAreBoundedWork$/^one_table$"),
	},
	{
		Name: "ids-of-forgotten-keys",
		Why:  "people decide about a key that is forgotten",
		File: "store/sqlschema/records/list.go",
		Old:  `> 0 AND {known}{limit}`,
		New:  `> 0{limit}`,
		Test: onEngine("^TestContract$/^sqlite$/^list$/^ids$"),
	},
	{
		Name: "an-index-for-the-operation-of-what-is-open",
		Why:  "SQLite reads all done records of an operation",
		File: "store/sqlschema/records/list.go",
		Old:  `"+{asked}"`,
		New:  `"{asked}"`,
		Test: onEngine("^TestPlansOfPagesInSQLite$"),
	},
}

// janitorBugs are in the janitor.
var janitorBugs = []Bug{
	{
		Name: "a-janitor-without-rest",
		Why:  "forgetting takes all of the database's time",
		File: "janitor/janitor.go",
		Old:  "float64(worked)/r.Share-float64(worked)",
		New:  "float64(worked)-float64(worked)*r.Share",
		Test: Test{"./janitor", "^TestShare$"},
	},
	{
		Name: "a-janitor-in-trouble-rests-for-days",
		Why:  "one failure of the store, and nothing is forgotten for long",
		File: "janitor/janitor.go",
		Old:  "			pause = trouble.Next()",
		New:  "			pause = 1000 * trouble.Next()",
		Test: Test{"./janitor", "^TestAStoreInTrouble$"},
	},
	{
		Name: "trouble-with-one-kind-ends-the-look",
		Why:  "shelved messages are not deleted because another role owns the partitions",
		File: "janitor/janitor.go",
		Old:  "				failed = errors.Join(failed, err)",
		New:  "				return err",
		Test: Test{"./janitor", "^TestKindsTakeTurns$"},
	},
}
