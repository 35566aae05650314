//go:build linux

// Package consume proves what package inbox promises, on real stores and real brokers.
//
// The soak has everything at once: processes that consume are killed at random moments, brokers are restarted,
// messages come twice, late, too early, or are such that they fail for ever, or kill whoever handles them, and a
// person replays what was parked. In the end each message was handled once, or is parked and listed; the seed that is
// printed repeats what chance decided. Beside it, each window between a commit and an acknowledgement is forced by a
// test of its own.
//
// # Limits
//
// SIGKILL shows what the death of a process does. It shows nothing of the loss of power. Kafka is kfake, which speaks
// the protocol in this process and keeps its files; NATS is the real server, in this process as well. Linux only.
package consume
