// Package oncetest proves a message handler. It forces duplicates, crashes and races
// on a service, and shows each way in which its effects differ.
//
//	func TestBilling(t *testing.T) {
//		oncetest.Prove(t, oncetest.Case[*world]{
//			Setup: newWorld, // the store, and doubles of the systems that the service calls
//			Run: func(ctx context.Context, p *oncetest.Process, w *world) error {
//				c := &inbox.Consumer{Name: "billing", Source: p.Source(),
//					Handler: inbox.Tx(oncetest.Store(p, w.store), handle)}
//				return c.Run(ctx)
//			},
//			Probe:    func(ctx context.Context, w *world) (string, error) { return w.invoices(ctx) },
//			Messages: orders,
//		})
//	}
//
// # Promise
//
// Prove delivers each message once, in order, to an undisturbed service. What
// [Case.Probe] shows then is right. After that, the service gets an empty world for
// each of these schedules, and must come to the same state:
//
//   - Each message twice in a row, and 64 times at once to two processes; all of them
//     again at the end; each from a dead-letter queue, after a later one; with a later
//     time; all twice, with unrelated ordering keys in reverse order; with another ID
//     ([Case.Work]); after its key was forgotten ([Case.Forget]).
//   - Acknowledgements that are lost, and a session that breaks with unacknowledged
//     messages.
//   - A crash before and after each step of the undisturbed run (see [Process]), and a
//     lost reply if the step is a request or a publish.
//   - Storms of repeated messages with several crashes, chosen by a seed.
//
// Schedules are the same in each run, because a step is identified by the message
// that was being delivered. Each is a subtest, and a finding says how to run it
// alone. [Case.Seed] and the environment variable ONCETEST_SEED determine the random
// choices.
//
// # How to read a finding
//
//	crash after publish of m1: work was done more than once
//	  window:  the process crashed after publish of m1 (the next step would have been commit), and the next one started.
//	  seen:    + event m1
//	  usually: Something was published or requested before the commit. …
//	  do:      Write events in the transaction and publish them after it with stable IDs (an outbox), …
//	  again:   ONCETEST_SEED=1 go test -run '^TestBilling$/^crash_after_publish_of_m1$'
//
// The window says when it happened, and is the only part that is certain. Lines with
// a minus are only in the right state, and those with a plus only in this one. Keys
// that the undisturbed service did not claim are shown, because they often point to
// the cause. The rest is a guess, based on all of this.
//
// # Limits
//
// It sees only what goes through the [Process], and what Probe shows. Steps in
// between, such as the commit of a transaction that the service began itself, need
// [Process.Step]. A crashed process is a set of goroutines that end, in one real
// process. What it kept in variables of the world is still there for the next
// process, and locks that are not released by defer stay locked. So oncetest cannot
// show what a power failure does to a disk, how concurrent transactions of a
// database interact, or whether a broker keeps its promises. For the second, use the
// real store in Setup. For the others, see the conformance suites. Messages come
// from a queue, so checkpoints of logs are not proven. A Probe that omits something
// proves nothing about it.
//
// # A year
//
// [Year] lets a whole service live through a year of fake time: consumers, operations
// and HTTP handlers, with many instances, requests and faults at once. It needs Go
// 1.25.
//
// # Compatibility
//
// The same as for package once. Names of schedules and texts of findings may change.
package oncetest
