// Package models checks three models of the protocol with Spin: the life of a key,
// the hand-over of lanes between relays, and positions with epochs. docs/models.md
// says what they show, and the head of each model what it leaves out.
//
// Real histories of keys are compared with the first one: key.steps has each change
// of a record that it makes, as Spin finds them, and [Life] checks that what a store
// has written is one of them.
//
// Each model has wrong variants, chosen by a macro, that break the law that their
// guard is for. "make test-models" runs all of them.
package models
