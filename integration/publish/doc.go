//go:build linux

// Package publish proves what package outbox promises, on real stores and with real processes.
//
// Producers commit rows with messages, roll them back, and keep transactions open; relays publish, and all of them are
// killed at random moments. Who takes the messages here is a press, which writes down what it confirms, and loses its
// replies when it is told to. In the end each message that was committed was printed, none that was rolled back, and
// those of an ordering key came in order; in runs without kills and faults, each came once. Beside that, what is known
// to break outboxes is forced by a test of its own: transactions that stay open, numbers that go back, restored dumps,
// relays that sleep through the end of their lease, brokers that die, and processes that die between any two steps of
// the way from message to message.
//
// # Limits
//
// SIGKILL shows what the death of a process does. It shows nothing of the loss of power. Kafka is kfake, which speaks
// the protocol in this process; NATS is the real server, in this process as well. Linux only.
package publish
