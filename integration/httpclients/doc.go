// Package httpclients proves the server half of httponce with what its users have: the Stripe client for Go, curl, and a
// process that is killed. It holds tests only, and starts all that they need.
package httpclients
