package oncetest

import "github.com/effectively-once/once"

// assembled is a store with those of the parts that the inner one has, and no others. That a store can do something
// is told by its type, and a type has all its methods or none: so there is one for each combination.
func assembled[Tx any](s *txStore[Tx], l *lister, r *registrar, p *positions[Tx], f *txShelf[Tx],
	has [4]bool) once.TxStore[Tx] {

	switch has {
	case [4]bool{true, false, false, false}:
		return struct {
			*txStore[Tx]
			*lister
		}{s, l}
	case [4]bool{false, true, false, false}:
		return struct {
			*txStore[Tx]
			*registrar
		}{s, r}
	case [4]bool{true, true, false, false}:
		return struct {
			*txStore[Tx]
			*lister
			*registrar
		}{s, l, r}
	case [4]bool{false, false, true, false}:
		return struct {
			*txStore[Tx]
			*positions[Tx]
		}{s, p}
	case [4]bool{true, false, true, false}:
		return struct {
			*txStore[Tx]
			*lister
			*positions[Tx]
		}{s, l, p}
	case [4]bool{false, true, true, false}:
		return struct {
			*txStore[Tx]
			*registrar
			*positions[Tx]
		}{s, r, p}
	case [4]bool{true, true, true, false}:
		return struct {
			*txStore[Tx]
			*lister
			*registrar
			*positions[Tx]
		}{s, l, r, p}
	case [4]bool{false, false, false, true}:
		return struct {
			*txStore[Tx]
			*txShelf[Tx]
		}{s, f}
	case [4]bool{true, false, false, true}:
		return struct {
			*txStore[Tx]
			*lister
			*txShelf[Tx]
		}{s, l, f}
	case [4]bool{false, true, false, true}:
		return struct {
			*txStore[Tx]
			*registrar
			*txShelf[Tx]
		}{s, r, f}
	case [4]bool{true, true, false, true}:
		return struct {
			*txStore[Tx]
			*lister
			*registrar
			*txShelf[Tx]
		}{s, l, r, f}
	case [4]bool{false, false, true, true}:
		return struct {
			*txStore[Tx]
			*positions[Tx]
			*txShelf[Tx]
		}{s, p, f}
	case [4]bool{true, false, true, true}:
		return struct {
			*txStore[Tx]
			*lister
			*positions[Tx]
			*txShelf[Tx]
		}{s, l, p, f}
	case [4]bool{false, true, true, true}:
		return struct {
			*txStore[Tx]
			*registrar
			*positions[Tx]
			*txShelf[Tx]
		}{s, r, p, f}
	case [4]bool{true, true, true, true}:
		return struct {
			*txStore[Tx]
			*lister
			*registrar
			*positions[Tx]
			*txShelf[Tx]
		}{s, l, r, p, f}
	}
	return s
}
