// Package faults has the tests of what goes wrong around a store: the database refuses a transaction, is full, slow or
// gone, a row is damaged, a process dies in the middle of forgetting, a clock is wrong, and two versions of the tables
// and of the programs on them meet.
//
// Each test forces its fault at a chosen moment and asserts that it came. What a fault of the network does to one
// request is tested beside package wire, the death of a worker in package crash.
package faults
