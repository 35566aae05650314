package prove

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
)

// echoes starts a server that answers each line with itself, and notes it.
func echoes(t *testing.T) (address string, got chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	got = make(chan string, 4*patientFor)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					got <- lines.Text()
					fmt.Fprintln(conn, lines.Text())
				}
			}()
		}
	}()
	return listener.Addr().String(), got
}

// ask sends a line over a connection, and returns the answer.
func ask(conn net.Conn, line string) (string, error) {
	if _, err := fmt.Fprintln(conn, line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return answer, err
}

func connect(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func start(t *testing.T) (*proxy, chan string) {
	t.Helper()
	server, got := echoes(t)
	p, err := newProxy("store", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p, got
}

func wantAnswer(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	if answer, err := ask(conn, line); err != nil || answer != line+"\n" {
		t.Errorf("%s is answered with %q, %v", line, answer, err)
	}
}

// The server has done what it was told, and the client gets no reply.
func TestASwallowedReplyIsThatToACommit(t *testing.T) {
	for _, commit := range []string{"COMMIT", "$7 EVALSHA", "$4 EXEC\r", "HPUB $KV.keys.a", "PUB $KV.keys.a"} {
		p, got := start(t)
		conn := connect(t, p)
		p.swallow(true)
		wantAnswer(t, conn, "insert")
		if answer, err := ask(conn, commit); err == nil {
			t.Errorf("%s is answered with %q", commit, answer)
		}
		if first, second := <-got, <-got; first != "insert" || strings.TrimSpace(second) != strings.TrimSpace(commit) {
			t.Errorf("the server got %s, %s", first, second)
		}
		wantAnswer(t, connect(t, p), "commit") // only one
		if did := p.did(); did.swallowed != 1 || p.calm() != 0 {
			t.Errorf("%s: %d were swallowed", commit, did.swallowed)
		}
	}
}

// A protocol may hide its commits.
func TestAnyReplyIsSwallowedIfNoCommitIsSeen(t *testing.T) {
	p, _ := start(t)
	conn := connect(t, p)
	p.swallow(true)
	passed := 0
	for ; passed <= 2*patientFor; passed++ {
		if _, err := ask(conn, "x"); err != nil {
			break
		}
	}
	if did := p.did(); passed != patientFor || did.swallowed != 1 {
		t.Errorf("%d replies passed, %d were swallowed", passed, did.swallowed)
	}
	p.swallow(false)
	p.swallow(false)
	if n := p.calm(); n != 2 {
		t.Errorf("%d were still to be swallowed", n)
	}
	wantAnswer(t, connect(t, p), "x")
}

func TestACutBreaksEveryConnection(t *testing.T) {
	p, _ := start(t)
	var conns []net.Conn
	for range 3 {
		conn := connect(t, p)
		wantAnswer(t, conn, "x")
		conns = append(conns, conn)
	}
	p.cut()
	for _, conn := range conns {
		if answer, err := ask(conn, "x"); err == nil {
			t.Errorf("it is answered with %q", answer)
		}
	}
	if did := p.did(); did != (proxied{accepted: 3, cuts: 1, broken: 3}) {
		t.Errorf("it did %+v", did)
	}
	wantAnswer(t, connect(t, p), "x")
	p.close()
	if conn, err := net.Dial("tcp", p.address()); err == nil {
		conn.Close()
		t.Error("its port is still open")
	}
}
