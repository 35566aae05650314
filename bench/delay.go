package main

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// delay is a proxy that delays each byte in both directions. It adds latency
// without limiting throughput.
type delay struct {
	listener net.Listener
	server   string
	by       atomic.Int64 // nanoseconds

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
}

func startDelay(server string, by time.Duration) (*delay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &delay{listener: listener, server: server, open: map[net.Conn]struct{}{}}
	d.by.Store(int64(by))
	go d.accept()
	return d, nil
}

func (d *delay) address() string { return d.listener.Addr().String() }

func (d *delay) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", d.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		if d.keep(client, server) {
			go d.carry(client, server)
			go d.carry(server, client)
		}
	}
}

// keep records connections for close. After close it closes them at once.
func (d *delay) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		if d.closed {
			_ = c.Close()
		} else {
			d.open[c] = struct{}{}
		}
	}
	return !d.closed
}

func (d *delay) drop(conns ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(d.open, c)
	}
}

func (d *delay) close() {
	_ = d.listener.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for c := range d.open {
		_ = c.Close()
	}
}

// parcel is the result of one read.
type parcel struct {
	bytes []byte
	due   time.Time
}

// carry copies bytes until one connection ends, and then ends both.
func (d *delay) carry(from, to net.Conn) {
	defer d.drop(from, to)
	alarm, err := newAlarm()
	if err != nil {
		return
	}
	defer alarm.close()
	parcels := make(chan parcel, 64)
	go d.collect(from, parcels)
	for p := range parcels {
		if alarm.wait(time.Until(p.due)) == nil {
			_, err = to.Write(p.bytes)
		}
		if err != nil {
			_ = from.Close() // ends collect
		}
	}
}

func (d *delay) collect(from net.Conn, parcels chan<- parcel) {
	defer close(parcels)
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		parcels <- parcel{buffer[:n], time.Now().Add(time.Duration(d.by.Load()))}
	}
}
