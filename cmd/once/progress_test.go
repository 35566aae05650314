package main

import (
	"errors"
	"strings"
	"testing"
)

func TestProgressTakesOneLine(t *testing.T) {
	var text strings.Builder
	p := &progress{out: &text}
	p.say("%d of %d messages", 100, 250)
	p.say("not so soon")
	p.end()
	p.say("7 keys")
	p.end()
	p.end()
	if want := "\r100 of 250 messages\r                   \r\r7 keys\r      \r"; text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
}

func TestProgressOfWorkThatTellsNothing(t *testing.T) {
	var text strings.Builder
	boom := errors.New("boom")
	begun := make(chan struct{})
	p := &progress{out: writer(func(b []byte) { // says a line before the work ends
		if text.Len() == 0 {
			close(begun)
		}
		text.Write(b)
	})}
	err := p.during("migrating", func() error {
		<-begun
		return boom
	})
	if !errors.Is(err, boom) || !strings.HasPrefix(text.String(), "\rmigrating: 0 s") || !strings.HasSuffix(text.String(), " \r") {
		t.Errorf("%q %v", text.String(), err)
	}
	var none *progress
	if err := none.during("migrating", func() error { return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
