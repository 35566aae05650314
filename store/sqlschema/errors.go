package sqlschema

// Refusal is an error about the arguments of a call, or about the state in
// which a database was found. Its text says what to do.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// Lost is the error of a change that came too late: somebody else has changed
// the row since it was read.
type Lost string

func (l Lost) Error() string { return string(l) }
