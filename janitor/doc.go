// Package janitor forgets what has had its time: keys, messages that were put aside and dealt with, and messages that
// were published and kept.
//
// No answer depends on whether it has run: it gives room back. It does so in short transactions with rests between
// them, so that it takes a small part of the database's time however much there is to forget.
//
//	j := janitor.Janitor{Store: store}
//	err := j.Run(ctx)
//
// One is enough. Any number may run side by side, on one store or in all of its processes: no two wait for each
// other, except in SQLite, and what one has forgotten is nothing to the next. Keys are kept as long as the Policy of
// their operation says, and what is unknown or parked is never forgotten. With an Archive, outcomes are handed over
// before they are forgotten.
//
// [Quota] bounds how much there is to forget: how many keys each scope may have.
//
// The compatibility is that of package once.
package janitor
