// Package oncetest proves a message handler: it forces duplicates, crashes and races on a service, and shows each way
// in which its effects come out differently.
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
// Every message is delivered once, in order, to an undisturbed service: what [Case.Probe] shows then is right. After
// that the service gets an empty world for each of these schedules, and must come to the same state:
//
//   - each message twice in a row, and 64 times at once to two processes; all of them again at the end; each from a
//     dead-letter queue, behind another one; with a later time; all twice, with unrelated ordering keys in reverse;
//     with another ID ([Case.Work]); after its key was forgotten ([Case.Forget]);
//   - acknowledgements that are lost, and a session that breaks with messages out;
//   - a crash before and after each step that the undisturbed service took, see [Process]; and a lost reply where a step
//     is a request or a publish;
//   - storms of repeated messages and several crashes, by a seed.
//
// Schedules are the same in each run: a step is named by the message that was being delivered. Each is a subtest, and
// a finding says how to run it alone. [Case.Seed] and the environment's ONCETEST_SEED choose where chance does.
//
// # How to read a finding
//
//	crash after publish of m1: work was done more than once
//	  window:  the process died after publish of m1 (the next step would have been commit), and the next one began.
//	  seen:    + event m1
//	  usually: Something was published or requested before the commit, …
//	  do:      Write events in the transaction and publish them behind it with stable IDs (an outbox), …
//	  again:   ONCETEST_SEED=1 go test -run '^TestBilling$/^crash_after_publish_of_m1$'
//
// The window is when it happened, and the only part that is certain. Lines with a minus are in the right state only,
// those with a plus only in this one. Keys that the undisturbed service never claimed are shown, as they tell much.
// What follows is a guess at the cause, from all of that.
//
// # Limits
//
// It sees what goes through the [Process], and what Probe shows. Steps in between, such as the commit of a
// transaction that the service began itself, need a [Process.Step]. A dead process is goroutines that end, in one
// real process: what it kept in variables of the world is still there for the next one, and locks that are not given
// back by defer stay locked. So it cannot show what a loss of power does to a disk, what a database does to
// transactions that run beside each other, or whether a broker keeps its word: give Setup the real store for the
// second, and see the conformance suites for the rest. It delivers from a queue; checkpoints of logs are not proven.
// A Probe that leaves something out proves nothing about it.
//
// # Compatibility
//
// That of package once. Names of schedules and the texts of findings may change.
package oncetest
