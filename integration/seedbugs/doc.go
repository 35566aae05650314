// Package seedbugs applies bugs to the real code, one at a time, and checks
// that a test detects each.
//
// A [Bug] changes a few words in one file and names the fastest existing test
// that must fail because of it. [Runner] works in a copy of the tree. A test of
// this package checks that every bug can still be applied.
//
// Detecting every bug of the list does not prove that the tests detect every
// bug. It shows that they check what they claim to check. Bugs that appear only
// sometimes, such as races without a forced order, are left out.
package seedbugs
