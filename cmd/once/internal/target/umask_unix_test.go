//go:build unix

package target

import "syscall"

// openUmask lets files be made for everybody, until the function that it
// returns is called.
func openUmask() (restore func()) {
	before := syscall.Umask(0)
	return func() { syscall.Umask(before) }
}
