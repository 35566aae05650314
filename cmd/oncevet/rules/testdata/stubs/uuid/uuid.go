package uuid

type UUID [16]byte

func (UUID) String() string                { panic(0) }
func New() UUID                            { panic(0) }
func NewString() string                    { panic(0) }
func NewRandom() (UUID, error)             { panic(0) }
func Must(u UUID, err error) UUID          { panic(0) }
func NewSHA1(space UUID, data []byte) UUID { panic(0) }
