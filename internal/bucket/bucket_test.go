package bucket_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once/internal/bucket"
)

func TestBurstsAndThenTheRate(t *testing.T) {
	for _, test := range []struct {
		rate  bucket.Rate
		burst int
		every time.Duration
	}{
		{bucket.Rate{PerSecond: 4, Burst: 2}, 2, time.Second / 4},
		{bucket.Rate{PerSecond: 4}, 4, time.Second / 4},
		{bucket.Rate{PerSecond: 0.5}, 1, 2 * time.Second},
	} {
		var b bucket.Bucket
		now := time.Unix(0, 0)
		for i := range test.burst {
			if wait := b.Take(test.rate, now); wait != 0 {
				t.Errorf("%+v: number %d has to wait %v", test.rate, i, wait)
			}
		}
		for range 100 {
			if wait := b.Take(test.rate, now); wait != test.every {
				t.Fatalf("%+v: one too many waits %v, want %v", test.rate, wait, test.every)
			}
			if wait := b.Take(test.rate, now.Add(test.every-1)); wait == 0 {
				t.Fatalf("%+v: it came too early, and was let through", test.rate)
			}
			if now = now.Add(test.every); b.Take(test.rate, now) != 0 {
				t.Fatalf("%+v: it came in time, and was not let through", test.rate)
			}
		}
	}
}

func TestWhatIsGivenBackIsThere(t *testing.T) {
	rate, now := bucket.Rate{PerSecond: 1e-300, Burst: 1}, time.Unix(0, 0)
	var b bucket.Bucket
	b.Return() // of nothing makes it no larger
	if b.Take(rate, now) != 0 || b.Full(rate, now) || b.Take(rate, now) <= 0 {
		t.Error("one is not all that there is")
	}
	if b.Return(); !b.Full(rate, now) || b.Take(rate, now) != 0 {
		t.Error("what was given back is not there")
	}
}

func TestTimeFillsIt(t *testing.T) {
	rate, now := bucket.Rate{PerSecond: 1, Burst: 3}, time.Unix(0, 0)
	var b bucket.Bucket
	for range 3 {
		b.Take(rate, now)
	}
	if b.Take(rate, now.Add(-time.Hour)) == 0 {
		t.Error("a clock that was put back has filled it")
	}
	if early := b; early.Full(rate, now.Add(3*time.Second-1)) || !b.Full(rate, now.Add(3*time.Second)) {
		t.Error("it is not full when its time has passed")
	}
	if smaller := (bucket.Rate{PerSecond: 1, Burst: 1}); b.Take(smaller, now.Add(time.Hour)) != 0 || b.Take(smaller, now.Add(time.Hour)) == 0 {
		t.Error("a rate that has become smaller does not hold")
	}
	for range 100 {
		if b.Take(bucket.Rate{}, now) != 0 {
			t.Error("without a rate it has to wait")
		}
	}
}
