package server

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

var errPortTaken = errors.New("the port was taken by another process")

// Ports are below the range that the kernel assigns. Otherwise an outgoing
// connection could take the port of a server between its Kill and its Restart.
const firstPort, lastPort = 15000, 32000

// FreePort returns a free port for a server that is restarted on it.
func FreePort() (int, error) {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if !portTaken(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free port found on 127.0.0.1")
}

// differentPorts returns ports, each once: those of a cluster are chosen before its
// nodes take them.
func differentPorts(ports func() (int, error)) func() (int, error) {
	var mu sync.Mutex
	given := make(map[int]bool)
	return func() (int, error) {
		mu.Lock()
		defer mu.Unlock()
		for {
			port, err := ports()
			if err != nil || !given[port] {
				given[port] = true
				return port, err
			}
		}
	}
}

func portTaken(port int) bool {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return true
	}
	_ = l.Close()
	return false
}
