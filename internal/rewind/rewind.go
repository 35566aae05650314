// Package rewind takes a store in memory back to what it was, as a replica does
// that takes over without the last commits. It is for simulated worlds.
package rewind

// Save keeps what a store of package memstore has now. restore takes it back to that.
// Transactions that are open then do not commit. Package memstore sets it.
var Save func(memstore any) (restore func())
