// Package world simulates a world around the real code of once: its processes
// run on fake time, and call over boundaries that are slow, fail, hang, apply
// calls late or twice, and go down. Laws that must always hold are checked
// meanwhile.
//
// Everything is drawn from one [Seed], so a history that breaks a law can be
// played again. A decision is drawn by a hash of the seed and of what it is
// about: the process, the call, its object, and how often that was called before.
// Decisions do not depend on their order, so a fault can be left out while
// the rest of the history stays as it was. Drawn delays decide the order of
// events. Two events at one instant would be ordered by the scheduler, so every
// process has nanoseconds of its own.
//
// The core knows nothing of messages and keys: [World], [Process], [Cross],
// [Outage], [Line], [Law]. What a world consists of is a [Kind]. It starts
// processes on simulated links, lets faults happen for a while, calms the world,
// and judges what is left.
//
// The laws are in docs/laws.md.
package world
