// Package world simulates a world around the real code of once, with package
// internal/sim. Laws that must always hold are checked meanwhile.
//
// What a world consists of is a [Kind]. It starts processes on simulated links,
// lets faults happen for a while, calms the world, and judges what is left.
//
// The laws are in docs/laws.md.
package world
