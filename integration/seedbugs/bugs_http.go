package seedbugs

// httpBugs are in the guard of HTTP requests and in its client.
var httpBugs = []Bug{
	{
		Name: "target-after-outer-handlers",
		Why:  "behind StripPrefix, a refund gets the response of an order and is never made",
		File: "httponce/mark.go",
		Old:  `path, query, _ = strings.Cut(r.RequestURI, "?")`,
		New:  `path, query, _ = strings.Cut(r.URL.RequestURI(), "?")`,
		Test: Test{"./httponce", "^TestRequestsToDifferentPlacesDoNotShareAResponse$"},
	},
	{
		Name: "host-of-a-route-not-compared",
		Why:  "two virtual hosts of one mux take each other's responses",
		File: "httponce/mark.go",
		Old:  "host := hostOf(x.r.Pattern)",
		New:  `host := ""`,
		Test: Test{"./httponce", "^TestRequestsToDifferentPlacesDoNotShareAResponse$"},
	},
	{
		Name: "older-mark-without-headers",
		Why:  "a conditional request gets what an older build recorded for another condition",
		File: "httponce/mark.go",
		Old:  "case len(x.appendCompared(nil)) > 0:",
		New:  "case false:",
		Test: Test{"./httponce", "^TestMarksStay$"},
	},
}
