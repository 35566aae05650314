// Package seedbugs puts mistakes into the real code, one at a time, and checks that a test notices each.
//
// A [Bug] is a change of a few words in one file, with the existing test that has to fail because of it: the fastest one
// that does. [Runner] works in a copy of the tree and never in the tree itself. A test of this package keeps the list
// from rotting: every change must still fit, and docs/seeded-bugs.md must name it.
//
// That every bug of the list is noticed does not show that every bug is. It shows that the tests look at what they
// claim to look at. Bugs that show only now and then, such as races without a forced order, are left out.
package seedbugs
