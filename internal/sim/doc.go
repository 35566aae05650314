// Package sim simulates the world around processes: they run on fake time, and
// call over boundaries that are slow, fail, hang, apply calls late or twice, and
// go down. The processes are goroutines that are killed, stalled and started
// again.
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
// [Outage], [Line], [Law]. [Store] and [Broker] are links to a store and to a
// broker in memory. What a world consists of, and what must hold in it, its user
// says: integration/world for the code of this module, and oncetest.Year for a
// service.
package sim
