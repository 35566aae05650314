// Package handover tests relays that hand messages over to the queues of
// storebroker in one commit: what wrappers see, replies that are lost, decisions of
// people meanwhile, and networks that fail.
package handover
