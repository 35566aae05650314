package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

func TestPutCompletesMessages(t *testing.T) {
	b := newBench(t)
	events := outbox.New(b.store, &outbox.Options{Header: func(context.Context) map[string]string {
		return map[string]string{"traceparent": "here", "tenant": "0"}
	}})
	first, second := &broker.Message{Topic: "t", Header: map[string]string{"tenant": "7"}}, &broker.Message{Topic: "t"}
	tx := b.store.Begin()
	b.must(events.Put(t.Context(), tx, first))
	b.must(events.Put(t.Context(), tx, second))
	b.must(tx.Commit())
	if len(first.ID) != 36 || first.ID[14] != '7' || first.ID == second.ID || time.Since(first.Time) > time.Minute {
		t.Errorf("the first is %q at %v, the second %q", first.ID, first.Time, second.ID)
	}
	if len(first.Header) != 1 {
		t.Errorf("the caller's headers were changed: %v", first.Header)
	}
	rows, err := b.store.Outgoing(t.Context(), store.OutgoingQuery{})
	b.must(err)
	if h := rows[0].Message.Header; len(rows) != 2 || h["traceparent"] != "here" || h["tenant"] != "7" {
		t.Errorf("the rows are %+v", rows)
	}
}

func TestPutRefuses(t *testing.T) {
	b := newBench(t)
	small := outbox.New(b.store, &outbox.Options{MaxBody: 3})
	for name, test := range map[string]struct {
		ctx  context.Context
		m    *broker.Message
		want error
	}{
		"nil":       {t.Context(), nil, once.ErrInvalid},
		"no topic":  {t.Context(), &broker.Message{}, once.ErrInvalid},
		"long id":   {t.Context(), &broker.Message{Topic: "t", ID: strings.Repeat("x", 256)}, once.ErrInvalid},
		"header":    {t.Context(), &broker.Message{Topic: "t", Header: map[string]string{"A b": ""}}, once.ErrInvalid},
		"too large": {t.Context(), &broker.Message{Topic: "t", Body: []byte("four")}, once.ErrInvalid},
		"rebuild":   {scope.NoEffects(t.Context()), &broker.Message{Topic: "t"}, once.ErrNoEffects},
	} {
		tx := b.store.Begin()
		if err := small.Put(test.ctx, tx, test.m); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
		tx.Rollback()
	}
	if err := small.Put(t.Context(), nil, &broker.Message{Topic: "t"}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("no transaction: %v", err)
	}
	ended := b.store.Begin()
	b.must(ended.Commit())
	if err := small.Put(t.Context(), ended, &broker.Message{Topic: "t"}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("an ended transaction: %v", err)
	}
	b.must(small.Put(t.Context(), nil))
}

func TestADecisionNeedsByAndReason(t *testing.T) {
	b := newBench(t)
	admin := outbox.Admin{Store: b.store}
	b.put(some(1200, "a", "")...)
	if _, err := admin.Park(t.Context(), store.OutgoingQuery{}, outbox.Decision{By: "me"}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("without a reason: %v", err)
	}
	why := outbox.Decision{By: "me", Reason: "wrong prices"}
	if _, err := admin.Park(t.Context(), store.OutgoingQuery{State: store.Published}, why); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("what is published: %v", err)
	}
	dry := why
	dry.DryRun = true
	for _, test := range []struct {
		do    func(context.Context, store.OutgoingQuery, outbox.Decision) (outbox.Tally, error)
		q     store.OutgoingQuery
		by    outbox.Decision
		want  int
		stuck int
	}{
		{admin.Park, store.OutgoingQuery{}, dry, 1200, 0},
		{admin.Park, store.OutgoingQuery{Limit: 1000}, why, 1000, 1000},
		{admin.Replay, store.OutgoingQuery{IDs: []string{"a0001", "a0002"}}, why, 2, 998},
		{admin.Discard, store.OutgoingQuery{Limit: 501}, why, 501, 497},
	} {
		got, err := test.do(t.Context(), test.q, test.by)
		b.must(err)
		if got.Matched != test.want || got.Changed != test.want || len(b.rows(store.Stuck)) != test.stuck {
			t.Errorf("%+v, and %d are stuck; want %d and %d", got, len(b.rows(store.Stuck)), test.want, test.stuck)
		}
	}
	page, err := admin.List(t.Context(), store.OutgoingQuery{State: store.Stuck, Limit: 1})
	b.must(err)
	if reason := page[0].Reason; !strings.Contains(reason, "me") || !strings.Contains(reason, "wrong prices") {
		t.Errorf("the reason is %q", reason)
	}
}
