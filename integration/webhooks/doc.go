//go:build linux

// Package webhooks sends webhooks to consumers in other processes, which are
// killed between the commit and the answer, and counts the effects.
package webhooks
