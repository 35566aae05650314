//go:build linux

// Package publish proves the promises of package outbox, on real stores and
// with real processes.
//
// Producers commit rows with messages, roll them back, and keep transactions
// open. Relays publish. All of them are killed at random. The messages go to a
// press, a broker that records what it confirms and can lose its replies. At
// the end each committed message was published, none that was rolled back was,
// and those of an ordering key came in order. In runs without kills and faults,
// each came once. Tests of their own force what is known to break outboxes:
// long transactions, numbers that go back, restored dumps, relays that stall
// for longer than their lease, brokers that die, and processes that die between
// any two steps from message to message.
//
// # Limits
//
// SIGKILL shows the effects of the death of a process, but not of a power
// failure. Kafka is kfake, which speaks the protocol in this process. NATS is
// the real server, also in this process. Linux only.
package publish
