package demo

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
)

// startWork runs Work in this process.
func startWork(t *testing.T, open func(*Shop) Service) (to *json.Encoder, from *json.Decoder, stop func() error) {
	t.Helper()
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Work(stdin, stdout, map[string]func(*Shop) Service{With: open})
		stdout.Close()
	}()
	to, from = json.NewEncoder(in), json.NewDecoder(out)
	if err := to.Encode(setup{Side: With, Database: dataSource(t.TempDir(), "unused"), Broker: "http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	return to, from, func() error {
		in.Close()
		return <-done
	}
}

// A process asks at the point of an order's window and at no other, and waits there for the answer.
func TestProcessAsksAtItsPointAndEndsWithItsInput(t *testing.T) {
	passed := make(chan bool)
	to, from, stop := startWork(t, func(s *Shop) Service {
		go func() {
			o := Order{ID: "order-1", Window: lostAck}
			for _, at := range []point{atCharge, atAck, atLetter, atAck} {
				passed <- s.ask(at, "points", o, nil)
			}
			s.ask(atAck, "points", Order{}, nil)
			s.ask(atAck, "points", o, nil) // and waits for ever
		}()
		return Service{}
	})
	var at ready
	if err := from.Decode(&at); err != nil || !strings.HasPrefix(at.URL, "http://127.0.0.1:") {
		t.Fatalf("it serves at %q: %v", at.URL, err)
	}
	for i, lose := range []bool{false, true, false, false} {
		if i%2 == 1 {
			var q question
			if err := from.Decode(&q); err != nil || q.At != atAck || q.Consumer != "points" || q.Order.ID != "order-1" {
				t.Fatalf("it asks %+v, %v", q, err)
			}
			if err := to.Encode(answer{Number: q.Number, Lose: lose}); err != nil {
				t.Fatal(err)
			}
		}
		if got := <-passed; got != lose {
			t.Errorf("point %d: lose is %v, want %v", i, got, lose)
		}
	}
	var q question
	if err := from.Decode(&q); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestProcessEndsWithItsService(t *testing.T) {
	broken := errors.New("broken")
	_, from, stop := startWork(t, func(*Shop) Service {
		return Service{Run: []func(context.Context) error{func(context.Context) error { return broken }}}
	})
	var at ready
	if err := from.Decode(&at); err != nil {
		t.Fatal(err)
	}
	if err := from.Decode(&at); err != io.EOF {
		t.Errorf("it goes on: %v", err)
	}
	if err := stop(); !errors.Is(err, broken) {
		t.Errorf("it ended with %v", err)
	}
}

func TestDoorAsks(t *testing.T) {
	asked := make(chan Order, 1)
	d := &door{ask: func(at point, _ string, o Order, _ *broker.Message) bool {
		if at == atRequest {
			asked <- o
		}
		return false
	}, place: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o, err := readOrder(r); err != nil || o.ID != "order-1" {
			t.Errorf("it read %+v, %v", o, err)
		}
	})}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(`{"ID":"order-1","Window":"double-click"}`))
	if err != nil {
		t.Fatal(err)
	}
	d.ServeHTTP(nil, r)
	if o := <-asked; o.Window != doubleClick {
		t.Errorf("it asked about %+v", o)
	}
}

func TestProcessSetup(t *testing.T) {
	for _, in := range []string{``, `{}`, `{"Side":"other"}`} {
		if err := Work(strings.NewReader(in), io.Discard, Services()); err == nil {
			t.Errorf("%q is taken for a setup", in)
		}
	}
}
