//go:build linux

// Package crash kills processes that work through once, and counts what they have done.
//
// A worker is a process of its own that goes along a path through the library, such as a Do, and dies by its own SIGKILL
// at a point of it: a boundary that it passes, and on which side. The boundaries lie around the methods of the store, in
// the work, at each call of a database/sql driver, and at each request on the wire: before it is written, when it is on
// its way, and when its answer has arrived and nobody has seen it. Which points a path has is found out by going along
// it once on each engine, so they follow the code; then a worker dies at every one of them. Another process finishes
// its work, and each effect must be there as often as its path promises. Nothing depends on timing; a worker that did
// not come by its point is followed by another, until one has.
//
// Beside that, workers are killed one after another in the same work, or at moments that chance decides while they
// race; they are stopped past their lease and continued; 64 of them begin the same work at once; and the server itself
// is killed and started again.
//
// # Limits
//
// SIGKILL shows what the death of a process does. It shows nothing of the loss of power. Preparing a statement changes
// nothing, and is no boundary. Linux only: it looks into /proc, and needs package server.
package crash
