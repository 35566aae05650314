//go:build linux

// Package crash kills processes that use once, and counts their effects.
//
// A worker is a process that follows a path through the library, such as a Do,
// and kills itself with SIGKILL at a point of it: before, inside or after a
// boundary. Boundaries are the methods of the store, the work, each call of a
// database/sql driver, and each request on the wire: before it is written, when
// it is on its way, and when its answer has arrived but was not read. A first
// run along each path on each engine finds its points, so they follow the code.
// Then a worker dies at each of them. Another process finishes its work, and
// each effect must exist as often as its path promises. Nothing depends on
// timing: if a worker did not pass its point, another follows.
//
// Workers are also killed one after another in the same work, or at random
// moments while they race. They are stopped past their lease and continued. 64
// of them begin the same work at once. The server itself is killed and
// restarted.
//
// # Limits
//
// SIGKILL shows what the death of a process does, and not what a power failure
// does. Preparing a statement changes nothing, and is not a boundary. Linux
// only: it reads /proc, and needs package server.
package crash
