package demo

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/effectively-once/once"
)

// startWorker runs Work in this process.
func startWorker(t *testing.T, handle Handler) (tasks *json.Encoder, answers *json.Decoder, stop func() error) {
	t.Helper()
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Work(stdin, stdout, map[string]Handler{With: handle}) }()
	tasks, answers = json.NewEncoder(in), json.NewDecoder(out)
	if err := tasks.Encode(setup{Side: With, Database: dataSource(t.TempDir(), "unused")}); err != nil {
		t.Fatal(err)
	}
	return tasks, answers, func() error {
		in.Close()
		return <-done
	}
}

func ask(t *testing.T, tasks *json.Encoder, answers *json.Decoder, task task) (a answer) {
	t.Helper()
	if err := errors.Join(tasks.Encode(task), answers.Decode(&a)); err != nil {
		t.Fatal(err)
	}
	return a
}

func passes(points ...point) Handler {
	return func(_ context.Context, s *Shop, _ Order) error {
		for _, p := range points {
			s.at(p)
		}
		return nil
	}
}

func TestWorkerWaitsAtItsPointAndEndsWithItsInput(t *testing.T) {
	tasks, answers, stop := startWorker(t, passes(beforeCharge, afterCharge, inTransaction))
	if a := ask(t, tasks, answers, task{}); !a.Acked {
		t.Errorf("told to live, it answers %+v", a)
	}
	if a := ask(t, tasks, answers, task{DieAt: afterCharge}); a.At != afterCharge || a.Acked {
		t.Errorf("told to die, it answers %+v", a)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// So that both sides crash equally often: a handler that has nothing to do does not come past its point.
func TestWorkerDiesBeforeTheAckAtTheLatest(t *testing.T) {
	tasks, answers, stop := startWorker(t, passes())
	defer stop()
	if a := ask(t, tasks, answers, task{DieAt: inTransaction}); a.At != beforeAck || a.Acked {
		t.Errorf("it answers %+v", a)
	}
}

func TestWorkerRefuses(t *testing.T) {
	for _, test := range []struct {
		err   error
		retry bool
	}{{errors.New("no"), true}, {once.Permanent(errors.New("no")), false}} {
		tasks, answers, stop := startWorker(t, func(context.Context, *Shop, Order) error { return test.err })
		if a := ask(t, tasks, answers, task{DieAt: inTransaction}); a.Acked || a.At != "" || a.Refused != test.err.Error() || a.Retry != test.retry {
			t.Errorf("%v: it answers %+v", test.err, a)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestWorkerSetup(t *testing.T) {
	for _, in := range []string{``, `{}`, `{"Side":"other"}`} {
		if err := Work(strings.NewReader(in), io.Discard, Handlers()); err == nil {
			t.Errorf("%q is taken for a setup", in)
		}
	}
}
