// Package console shows a store to people in a browser: what needs a person now,
// where a unit of work stands and how it got there, and what is known about work
// whose outcome is not. People settle such work there, with a reason.
//
// A program mounts the [Console] as an [http.Handler]:
//
//	c, err := console.New(console.Options{
//		Stores: []console.Store{{Name: "shop", Store: store}},
//		People: []console.Person{{Name: "ann", Role: console.Decide, Token: token}},
//		Write:  true,
//	})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	return http.ListenAndServe("localhost:9470", c)
//
// # Safe by default
//
// Without Write, nothing can be changed. Nobody gets in without a token, or the
// header of a proxy that is named in [Options.Proxy]. Requests for a host that is
// not in [Options.Hosts], and changes that come from a page of another origin, are
// refused. A change needs a reason, is confirmed on a page that repeats what will
// change, applies only to the record as it was shown, and is logged with its
// person.
//
// # Pages
//
// Pages are rendered by the server and work without JavaScript. A script of this
// package refreshes the overview and adds keys for people who use the keyboard.
// docs/console.md shows each page, and says what the console cannot do yet.
//
// # Load
//
// A page reads a bounded number of records, and says so if there are more. A count
// ends at 1,000. One goroutine samples the stores for the overview, every ten
// seconds while somebody looks, and else once a minute.
package console
