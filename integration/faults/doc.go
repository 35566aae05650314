// Package faults tests what can go wrong around a store: the database refuses a
// transaction, is full, slow or down, a row is damaged, a process is killed
// while it forgets, a clock is wrong, or programs and tables of two versions
// meet.
//
// Each test forces a fault at a chosen moment and checks that it happened.
// Network faults of single requests are tested in package wire, and crashes of
// workers in package crash.
package faults
