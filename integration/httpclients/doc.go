// Package httpclients tests the server side of httponce with the clients that
// users have: the Stripe clients, curl, and a process that is killed. It
// contains only tests, which start everything that they need.
package httpclients
