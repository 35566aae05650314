//go:build linux

// Package consume proves the promises of package inbox, on real stores and real
// brokers.
//
// The soak combines everything: consuming processes are killed at random,
// brokers are restarted, messages come twice, late or too early, some always
// fail, some kill their process, and a person replays parked messages. At the
// end each message was handled once, or is parked. The seed that is printed
// repeats the random choices. Beside it, tests of their own force each window
// between a commit and an acknowledgement.
//
// # Limits
//
// SIGKILL shows the effects of the death of a process, but not of a power
// failure. Kafka is kfake, which speaks the protocol in this process and keeps
// its files; under "make test-kafka" it is a cluster of three nodes. NATS is the
// real server, also in this process. RabbitMQ is one node, whose connections are
// cut; under "make test-rabbitmq" it is a cluster of three, of which one is
// separated from the others. Linux only.
package consume
