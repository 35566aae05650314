package seedbugs

// quotaBugs are in quotas and admission.
var quotaBugs = []Bug{
	{
		Name: "a-quota-forgets-what-came-while-it-counted",
		Why:  "a caller has more keys than its quota allows after each count",
		File: "janitor/count.go",
		Old:  "of.mine, of.told = of.since, false",
		New:  "of.mine, of.told = of.open, false",
		Test: Test{"./janitor", "^TestOvershootIsBounded$"},
	},
	{
		Name: "a-quota-counts-what-it-let-in-twice",
		Why:  "a caller that has room is rejected",
		File: "janitor/count.go",
		Old:  "max(int(saw.young)-of.since, 0)",
		New:  "int(saw.young)",
		Test: Test{"./janitor", "^TestKeysComeAndGoWhileItCounts$"},
	},
	{
		Name: "no-answers-over-a-quota",
		Why:  "a client that repeats a done call is told that it was not done",
		File: "admission/admission.go",
		Old:  "return rec.Attempt > 0",
		New:  "return rec.Attempt < 0",
		Test: Test{"./grpconce", "^TestANewKeyNeedsRoomAndAKnownOneDoesNot$"},
	},
}
