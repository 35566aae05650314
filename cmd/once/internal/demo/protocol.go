package demo

import "time"

// The broker and a worker speak JSON lines over the worker's stdin and stdout. A worker gets its setup first,
// then one task at a time. It answers a task once.

// setup tells a worker where it works.
type setup struct {
	Side     string
	Database string // data source name
	Provider string // URL
}

// task is a delivery as a worker sees it.
type task struct {
	Order Order
	DieAt point // come so far and wait there to be killed; empty: live on
}

// answer tells how far a task has come.
type answer struct {
	At      point         // waiting here to be killed
	Acked   bool          // handled
	Refused string        // not handled: the reason
	Retry   bool          // whether it makes sense to deliver a refused message again
	After   time.Duration // and when
}
