package wire_test

import (
	"io"
	"net"
	"testing"

	"github.com/effectively-once/once/integration/wire"
)

// echo is a server that sends back what it gets, and counts the messages.
func echo(t *testing.T) (address string, got chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	got = make(chan string, 10)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				buffer := make([]byte, 100)
				for {
					n, err := conn.Read(buffer)
					if err != nil {
						_ = conn.Close()
						return
					}
					got <- string(buffer[:n])
					_, _ = conn.Write(buffer[:n])
				}
			}()
		}
	}()
	return listener.Addr().String(), got
}

func TestRaw(t *testing.T) {
	for name, test := range map[string]struct {
		action wire.Action
		want   string
		served bool
	}{
		"pass":    {wire.Pass, "hello", true},
		"drop":    {wire.DropRequest, "", false},
		"swallow": {wire.SwallowReply, "", true},
		"cut":     {wire.CutReply(2), "he", true},
		"but one": {wire.CutReply(-1), "hell", true},
	} {
		t.Run(name, func(t *testing.T) {
			server, got := echo(t)
			proxy := wire.Start(t, server, wire.Raw)
			rule := proxy.On(wire.Sends("hello"), test.action)
			conn, err := net.Dial("tcp", proxy.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "hello"); err != nil {
				t.Fatal(err)
			}
			buffer := make([]byte, 100)
			n, _ := io.ReadAtLeast(conn, buffer, max(len(test.want), 1))
			if string(buffer[:n]) != test.want {
				t.Errorf("got %q, want %q", buffer[:n], test.want)
			}
			wantHits(t, rule, 1)
			if len(got) == 1 != test.served {
				t.Errorf("the server got %d requests", len(got))
			}
		})
	}
}
