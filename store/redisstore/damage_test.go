package redisstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

// Whatever bit of what is stored is damaged, finished work does not run again: a
// repeat gets its answer, or once.ErrCorrupt.
func TestNoDamagedBitRepeatsFinishedWork(t *testing.T) {
	c := connect(t)
	run := 0
	paid := func(context.Context, once.Key) (string, error) { run++; return "paid", nil }
	paidTx := func(context.Context, *redisstore.Tx) (string, error) { run++; return "paid", nil }
	work := pay.For("1").In("shop").Input([]byte("4999")).CausedBy(once.Key{Operation: "order", ID: "7"}.String())
	do := func(s *redisstore.Store) (string, error) { return once.Do(t.Context(), s, work, paid) }
	doTx := func(s *redisstore.Store) (string, error) { return once.DoTx(t.Context(), s, work, paidTx) }
	speculative := *pay
	speculative.Speculative = true
	atOnce := func(s *redisstore.Store) (string, error) {
		w := speculative.For("1").In("shop").Input([]byte("4999"))
		return once.DoTx(t.Context(), s, w, paidTx)
	}
	ways := map[string]func(*redisstore.Store) (string, error){"Do": do, "DoTx": doTx, "DoTx at once": atOnce}
	for name, first := range map[string]func(*redisstore.Store) (string, error){"Do": do, "DoTx": doTx} {
		t.Run(name, func(t *testing.T) {
			step := 1 // which bits
			if name == "DoTx" {
				step = 11 // its records are the same, and its scripts others
			}
			s, prefix := fresh(t, c)
			if got, err := first(s); got != "paid" || err != nil {
				t.Fatalf("the first call returned %q, %v", got, err)
			}
			bits, changed := 0, 0
			try := func(what string) {
				for way, repeat := range ways {
					if way != "Do" && bits%5 > 0 {
						continue
					}
					// s expects duplicates, and answers them from the outcome alone. Others ask a script.
					asked := redisstore.New(c, &redisstore.Options{Prefix: prefix})
					if what == "the outcome" && way == "Do" {
						asked = s
					}
					before := run
					got, err := repeat(asked)
					if committed := way != "DoTx at once" && run != before; committed || !(got == "paid" && err == nil || errors.Is(err, once.ErrCorrupt)) {
						t.Errorf("%s: %s returned %q, %v after %d runs", what, way, got, err, run-before)
					}
					if err != nil {
						changed++
					}
				}
				bits++
			}
			for _, key := range keysOf(t, c, prefix) {
				kept := c.TTL(t.Context(), key).Val()
				if strings.HasSuffix(key, ":outcome") {
					value := []byte(c.Get(t.Context(), key).Val())
					for bit := 0; bit < 8*len(value); bit += step {
						value[bit/8] ^= 1 << (bit % 8)
						must(t, c.Set(t.Context(), key, value, kept).Err())
						try("the outcome")
						value[bit/8] ^= 1 << (bit % 8)
					}
					must(t, c.Set(t.Context(), key, value, kept).Err())
					continue
				}
				fields := c.HGetAll(t.Context(), key).Val()
				for name, value := range fields {
					for bit := 0; bit < 8*len(value); bit += step {
						damaged := []byte(value)
						damaged[bit/8] ^= 1 << (bit % 8)
						must(t, c.HSet(t.Context(), key, name, damaged).Err())
						try(name)
					}
					must(t, c.HSet(t.Context(), key, name, value).Err())
					for bit := 0; bit < 8*len(name); bit += step {
						damaged := []byte(name)
						damaged[bit/8] ^= 1 << (bit % 8)
						rename(t, c, key, name, string(damaged), value)
						try(name + " by another name")
						rename(t, c, key, string(damaged), name, value)
					}
				}
			}
			if t.Logf("%d bits, and %d calls were refused", bits, changed); bits*step < 4000 || changed*step < 2000 {
				t.Error("the test damages nothing")
			}
		})
	}
}

func rename(t *testing.T, c *redis.Client, key, from, to, value string) {
	t.Helper()
	_, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HDel(t.Context(), key, from)
		p.HSet(t.Context(), key, to, value)
		return nil
	})
	must(t, err)
}

// Records of the builds before the check are read as before.
func TestRecordsOfEarlierBuildsAreRead(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	_, err := once.Do(t.Context(), s, pay.For("1"), answer("paid"))
	must(t, err)
	for _, key := range keysOf(t, c, prefix) {
		if !strings.HasSuffix(key, ":outcome") {
			must(t, c.HDel(t.Context(), key, "format", "check").Err())
		}
	}
	if got, err := once.Do(t.Context(), s, pay.For("1"), answer("paid twice")); got != "paid" || err != nil {
		t.Errorf("Do returned %q, %v", got, err)
	}
	rec, err := s.Get(t.Context(), pay.For("1").Key())
	must(t, err)
	must(t, s.Reopen(t.Context(), once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}, time.Hour, "again"))
	if got, err := once.Do(t.Context(), s, pay.For("1"), answer("paid twice")); got != "paid twice" || err != nil {
		t.Errorf("Do returned %q, %v", got, err)
	}
}

func TestARecordOfANewerBuildIsRefused(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	_, err := once.Do(t.Context(), s, pay.For("1"), answer("paid"))
	must(t, err)
	for _, key := range keysOf(t, c, prefix) {
		if !strings.HasSuffix(key, ":outcome") {
			must(t, c.HSet(t.Context(), key, "format", "3").Err())
		}
	}
	if got, err := once.Do(t.Context(), s, pay.For("1"), answer("paid twice")); !errors.Is(err, once.ErrCorrupt) || !strings.Contains(err.Error(), "newer") {
		t.Errorf("Do returned %q, %v", got, err)
	}
}

// sample is a record in Redis, by its fields, and its outcome.
type sample struct {
	Record  map[string][]byte
	Outcome []byte
}

// What each build has stored is read for ever: testdata/formats has a sample of
// each format. One that is missing is written.
func TestEveryFormatIsRead(t *testing.T) {
	const dir, latest = "testdata/formats", "2"
	c := connect(t)
	s, prefix := fresh(t, c)
	forever := *pay
	forever.Policy = once.Policy{KeepOutcome: 250 * 365 * 24 * time.Hour, KeepKey: 250 * 365 * 24 * time.Hour}
	work := forever.For("1").In("shop").Input([]byte("4999"))
	if _, err := once.Do(t.Context(), s, work, answer("paid")); err != nil {
		t.Fatal(err)
	}
	id := work.Key().UUID()
	record := fmt.Sprintf("%s{%02x}:%x", prefix, id[0], id)
	if _, err := os.Stat(filepath.Join(dir, latest)); err != nil {
		is := sample{Record: make(map[string][]byte), Outcome: []byte(c.Get(t.Context(), record+":outcome").Val())}
		for name, value := range c.HGetAll(t.Context(), record).Val() {
			is.Record[name] = []byte(value)
		}
		text, _ := json.MarshalIndent(is, "", "\t")
		t.Errorf("there was no sample of this build's format, and one was written: keep it for ever: %v",
			errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, latest), text, 0o644)))
	}
	samples, err := os.ReadDir(dir)
	must(t, err)
	if len(samples) < 2 {
		t.Errorf("there are %d samples", len(samples))
	}
	for _, file := range samples {
		text, err := os.ReadFile(filepath.Join(dir, file.Name()))
		must(t, err)
		var is sample
		must(t, json.Unmarshal(text, &is))
		must(t, c.Del(t.Context(), record, record+":outcome").Err())
		for name, value := range is.Record {
			must(t, c.HSet(t.Context(), record, name, value).Err())
		}
		must(t, c.Set(t.Context(), record+":outcome", is.Outcome, 0).Err())
		for range 40 { // until it expects duplicates, and answers them from the outcome alone
			got, err := once.Do(t.Context(), s, work, answer("paid twice"))
			if got != "paid" || err != nil {
				t.Fatalf("%s: Do returned %q, %v", file.Name(), got, err)
			}
		}
		got, err := once.DoTx(t.Context(), redisstore.New(c, &redisstore.Options{Prefix: prefix}), work,
			func(context.Context, *redisstore.Tx) (string, error) { return "paid twice", nil })
		if got != "paid" || err != nil {
			t.Errorf("%s: DoTx returned %q, %v", file.Name(), got, err)
		}
	}
}
