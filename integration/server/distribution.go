//go:build linux

package server

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// distribution is what Erlang nodes find each other by, and the connections
// between them. Each node has an epmd of its own, on loopback, so that the
// machine's epmd is neither used nor started. It tells its node ports that lead
// to the other nodes through this process, which can stop what passes.
type distribution struct {
	names     []string // of the nodes, without their host
	epmds     []int    // their ports, by node
	passages  map[passage]int
	listeners []net.Listener
	running   sync.WaitGroup

	mu     sync.Mutex
	apart  []bool               // nodes that nothing arrives at or comes from
	ports  []int                // that the nodes listen on, as they have told their epmd; 0: they do not run
	conns  map[net.Conn]passage // nil after stop
	healed chan struct{}        // closed when the present or the next partition ends
}

// passage is the way of the connections that a node opens to another one.
type passage struct{ from, to int }

var noPassage = passage{-1, -1} // of the connections to an epmd

// distribute listens for nodes of these names.
func distribute(names []string) (*distribution, error) {
	n := len(names)
	d := &distribution{names: names, apart: make([]bool, n), ports: make([]int, n),
		passages: make(map[passage]int), conns: make(map[net.Conn]passage), healed: make(chan struct{})}
	for i := range n {
		port, err := d.listen(noPassage, func(c net.Conn) { d.answer(i, c) })
		d.epmds = append(d.epmds, port)
		for to := range n {
			way := passage{i, to}
			if to != i && err == nil {
				d.passages[way], err = d.listen(way, func(c net.Conn) { d.pass(c, way) })
			}
		}
		if err != nil {
			d.stop()
			return nil, err
		}
	}
	return d, nil
}

// listen calls serve for each connection, which it closes afterwards, and returns
// the port.
func (d *distribution) listen(way passage, serve func(net.Conn)) (port int, err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	d.listeners = append(d.listeners, l)
	d.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.running.Go(func() {
				defer d.drop(c)
				if d.keep(c, way) {
					serve(c)
				}
			})
		}
	})
	return l.Addr().(*net.TCPAddr).Port, nil
}

// keep notes a connection, which heal or stop may close. After stop it reports
// false.
func (d *distribution) keep(c net.Conn, way passage) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		return false
	}
	d.conns[c] = way
	return true
}

func (d *distribution) drop(c net.Conn) {
	_ = c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// The requests to epmd, and its answers.
const (
	epmdAlive, epmdIsAlive = 'x', 'v'
	epmdPortOf, epmdIsAt   = 'z', 'w'
	epmdNames              = 'n'
)

// answer is the epmd of a node.
func (d *distribution) answer(node int, c net.Conn) {
	r := bufio.NewReader(c)
	var size uint16
	if binary.Read(r, binary.BigEndian, &size) != nil {
		return
	}
	request := make([]byte, size)
	if _, err := io.ReadFull(r, request); err != nil || size == 0 {
		return
	}
	switch request[0] {
	case epmdAlive:
		if len(request) < 3 || !strings.Contains(string(request), d.names[node]) {
			return // it is one that RabbitMQ has started to start an epmd
		}
		d.register(node, int(binary.BigEndian.Uint16(request[1:])))
		_, _ = c.Write([]byte{epmdIsAlive, 0, 0, 0, 0, 1})
		_, _ = io.Copy(io.Discard, r) // the node keeps the connection as long as it lives
		d.register(node, 0)
	case epmdPortOf:
		_, _ = c.Write(d.portOf(node, string(request[1:])))
	case epmdNames:
		text := binary.BigEndian.AppendUint32(nil, uint32(d.epmds[node]))
		for i, name := range d.names {
			if d.port(i) != 0 {
				text = fmt.Appendf(text, "name %s at port %d\n", name, d.portFor(node, i))
			}
		}
		_, _ = c.Write(text)
	}
}

func (d *distribution) register(node, port int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ports[node] = port
}

// port returns the port that a node listens on, or 0.
func (d *distribution) port(node int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ports[node]
}

// portFor returns the port at which a node reaches another one, or itself.
func (d *distribution) portFor(node, other int) int {
	if node == other {
		return d.port(node)
	}
	return d.passages[passage{node, other}]
}

// portOf answers where a node of a name is.
func (d *distribution) portOf(node int, name string) []byte {
	for i, known := range d.names {
		if known != name || d.port(i) == 0 {
			continue
		}
		const normalNode, tcp, newest, oldest = 'M', 0, 6, 5
		answer := binary.BigEndian.AppendUint16([]byte{epmdIsAt, 0}, uint16(d.portFor(node, i)))
		answer = append(answer, normalNode, tcp, 0, newest, 0, oldest)
		answer = append(binary.BigEndian.AppendUint16(answer, uint16(len(name))), name...)
		return append(answer, 0, 0)
	}
	const notFound = 1
	return []byte{epmdIsAt, notFound}
}

// pass carries a connection from one node to another.
func (d *distribution) pass(c net.Conn, way passage) {
	if d.awaitHealed(way) {
		return // nobody has answered
	}
	to, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", d.port(way.to)))
	if err != nil {
		return
	}
	defer d.drop(to)
	if !d.keep(to, way) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { d.carry(to, c, way) })
	d.carry(c, to, way)
	back.Wait()
}

// carry copies until one end is closed, and closes both. During a partition it
// drops what comes, and does not tell an end that the other one is closed.
func (d *distribution) carry(from, to net.Conn, way passage) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err == nil && !d.isApart(way) {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			d.awaitHealed(way)
			_ = errors.Join(from.Close(), to.Close())
			return
		}
	}
}

// isApart reports whether nothing passes.
func (d *distribution) isApart(way passage) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cut(way)
}

// cut is isApart under the mutex.
func (d *distribution) cut(way passage) bool {
	return way != noPassage && (d.apart[way.from] || d.apart[way.to])
}

// awaitHealed waits for the end of a partition, if something does not pass, and
// reports whether that was so.
func (d *distribution) awaitHealed(way passage) bool {
	d.mu.Lock()
	apart, healed := d.cut(way), d.healed
	d.mu.Unlock()
	if apart {
		<-healed
	}
	return apart
}

// isolate lets nothing pass from a node or to it, until heal.
func (d *distribution) isolate(node int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.apart[node] = true
}

// heal lets everything pass. It closes the connections that have lost something.
func (d *distribution) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, way := range d.conns {
		if d.cut(way) {
			_ = c.Close()
		}
	}
	clear(d.apart)
	close(d.healed)
	d.healed = make(chan struct{})
}

// stop closes everything, and waits for the goroutines.
func (d *distribution) stop() {
	d.heal()
	d.mu.Lock()
	for _, l := range d.listeners {
		_ = l.Close()
	}
	for c := range d.conns {
		_ = c.Close()
	}
	d.conns = nil
	d.mu.Unlock()
	d.running.Wait()
}
