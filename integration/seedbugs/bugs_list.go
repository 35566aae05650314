package seedbugs

// listBugs are in the pages of lists.
var listBugs = []Bug{
	{
		Name: "a-short-page-is-the-last",
		Why:  "the few records of an operation are not found among many others",
		File: "store/pgstore/list.go",
		Old:  "	if len(page.Records) == limit {\n",
		New:  "	if len(page.Records) < limit {\n		page.Next = once.Key{}\n	} else {\n",
		Test: onPostgres("^TestPagesAreBoundedWork$/^one_table$"),
	},
	{
		Name: "all-is-read-for-what-is-open",
		Why:  "each look of a reconciler reads all that is done",
		File: "store/pgstore/list.go",
		Old:  "key == nil && sqlschema.Open(statuses) {",
		New:  "key == nil && sqlschema.Open(statuses[:0]) {",
		Test: onPostgres("^TestPagesAreBoundedWork$/^one_table$"),
	},
	{
		Name: "an-index-for-the-operation-of-what-is-open",
		Why:  "SQLite reads all that is done of an operation",
		File: "internal/sqlschema/list.go",
		Old:  `"+{asked}"`,
		New:  `"{asked}"`,
		Test: onEngine("^TestPlansOfPagesInSQLite$"),
	},
}

// janitorBugs are in whoever forgets.
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
		Name: "trouble-with-one-kind-ends-the-look",
		Why:  "nothing is forgotten of a shelf because the owner of partitions is somebody else",
		File: "janitor/janitor.go",
		Old:  "				failed = errors.Join(failed, err)",
		New:  "				return err",
		Test: Test{"./janitor", "^TestKindsTakeTurns$"},
	},
}
