package main

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

func TestDelayIsForBothDirectionsAndKeepsBytes(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		conn, err := echo.Accept()
		if err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	const by = 5 * time.Millisecond
	d, err := startDelay(echo.Addr().String(), by)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	conn, err := net.Dial("tcp", d.address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	sent := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	begun := time.Now()
	go func() { _, _ = conn.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 2*by {
		t.Errorf("there and back took %v, less than the delay of both directions", took)
	}
	if !bytes.Equal(got, sent) {
		t.Error("other bytes came back than were sent")
	}
	d.close()
	if _, err := conn.Read(got); err == nil {
		t.Error("a connection outlives its delay")
	}
}
