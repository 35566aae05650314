//go:build linux

// Package console has people use the console in Chromium: with and without
// JavaScript, two at once, on narrow and wide screens, while the store is away, and
// while other pages try to use their sign-in.
//
// "make test-browser" runs its tests. Screenshots go to the directory that ONCE_TEST_SCREENSHOTS names.
// "make screenshots" takes the pictures in docs.
package console
