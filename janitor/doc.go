// Package janitor forgets data whose retention has passed: keys, messages on
// the shelf that were handled or discarded, and published messages that were
// kept.
//
// No result depends on it: it only frees space. It works in short transactions
// with pauses between them, so that it takes a small part of the database's
// time however much there is to forget.
//
//	j := janitor.Janitor{Store: store}
//	err := j.Run(ctx)
//
// One Janitor is enough. Any number may run concurrently, on one store or in
// all of its processes. They do not wait for each other, except on SQLite. Keys
// are kept as long as the Policy of their operation says, and unknown and
// parked keys are never forgotten. An Archive gets outcomes before they are
// forgotten.
//
// [Quota] bounds how many keys each scope may have.
//
// The compatibility promise is that of package once.
package janitor
