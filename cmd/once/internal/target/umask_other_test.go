//go:build !unix

package target

func openUmask() (restore func()) { return func() {} }
