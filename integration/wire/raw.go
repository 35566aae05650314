package wire

import "bufio"

// Raw is for any protocol. The bytes that one read from the client returns are
// a request, and those of the next read from the server are its answer.
var Raw = Protocol{begin: func() conversation { return raw{} }}

type raw struct{}

func (raw) request(client *bufio.Reader) (Request, error) {
	data, err := chunk(client)
	return Request{Messages: []Message{{Kind: "Data", Text: string(data)}}, raw: data, answered: true}, err
}

func (raw) reply(server *bufio.Reader) ([]byte, bool, error) {
	data, err := chunk(server)
	return data, true, err
}

func chunk(r *bufio.Reader) ([]byte, error) {
	if _, err := r.Peek(1); err != nil {
		return nil, err
	}
	data := make([]byte, r.Buffered())
	n, err := r.Read(data)
	return data[:n], err
}
