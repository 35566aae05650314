package cas

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// A service whose clock is ahead or behind, answers with delays, and tells whole
// seconds: the interval always contains its time, and becomes narrow.
func TestTheServicesTimeIsWithinTheInterval(t *testing.T) {
	for seed := range uint64(200) {
		chance := rand.New(rand.NewPCG(seed, 1))
		ahead := time.Duration(chance.Int64N(int64(48 * time.Hour)))
		resolution := []time.Duration{time.Second, time.Millisecond, 1}[chance.IntN(3)]
		var c LearnedClock
		var now, fastest time.Duration = 0, time.Hour
		server := func(at time.Duration) time.Duration { return at + ahead + at/(2*driftShare) } // it runs fast
		for range 300 {
			there := time.Duration(chance.Int64N(int64(20 * time.Millisecond)))
			back := time.Duration(chance.Int64N(int64(20 * time.Millisecond)))
			c.learn(now, now+there+back, server(now+there).Truncate(resolution), resolution)
			fastest = min(fastest, there+back)
			now += there + back + time.Duration(chance.Int64N(int64(100*time.Millisecond)))
			low, high := c.at(now)
			if is := server(now) - now; is < low || is > high {
				t.Fatalf("seed %d: the service is %v ahead, and said to be between %v and %v", seed, is, low, high)
			}
		}
		if low, high := c.at(now); high-low > resolution/10+fastest+200*time.Millisecond {
			t.Errorf("seed %d: after 300 responses, the interval is %v wide", seed, high-low)
		}
	}
}

// The interval follows a service whose clock is set.
func TestTheIntervalFollowsAClockThatIsSet(t *testing.T) {
	var c LearnedClock
	c.learn(0, time.Millisecond, time.Hour, time.Microsecond)
	c.learn(time.Second, time.Second+time.Millisecond, time.Minute, time.Microsecond)
	if low, high := c.at(time.Second); low < 58*time.Second || high > time.Minute {
		t.Errorf("the service is said to be between %v and %v ahead", low, high)
	}
}

func TestNowAsksOnceAndThenKnows(t *testing.T) {
	asked := 0
	var c LearnedClock
	c.Ask = func(context.Context) error {
		asked++
		sent := time.Now()
		c.Learn(sent, sent.Add(time.Hour), time.Millisecond)
		return nil
	}
	for range 3 {
		now, err := c.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ahead := time.Until(now.earliest.Time()); ahead < 59*time.Minute || now.latest < now.earliest {
			t.Errorf("the time of a service that is an hour ahead is said to be between %v and %v", now.earliest.Time(), now.latest.Time())
		}
	}
	if asked != 1 {
		t.Errorf("the service was asked %d times", asked)
	}
	silent := &LearnedClock{Ask: func(context.Context) error { return nil }}
	if _, err := silent.Now(t.Context()); err == nil {
		t.Error("the time of a service that does not tell it is known")
	}
}

// While a machine is suspended, its monotonic clock may stand still: what was
// learned before is too early, and a lease that began by it would be short.
func TestTheTimeIsAskedForAfterASuspension(t *testing.T) {
	asked := 0
	service := time.Now
	var c LearnedClock
	c.Ask = func(context.Context) error {
		asked++
		c.Learn(time.Now(), service(), time.Millisecond)
		return nil
	}
	for range 3 {
		if _, err := c.Now(t.Context()); err != nil || asked != 1 {
			t.Fatalf("Now returned %v after %d requests", err, asked)
		}
	}
	for _, stood := range []time.Duration{time.Hour, -time.Hour} { // the wall clock may also have been set
		c.ahead -= stood
		service = func() time.Time { return time.Now().Add(stood) }
		before := asked
		now, err := c.Now(t.Context())
		if at := service().UnixMicro(); err != nil || asked != before+1 || int64(now.earliest) > at || int64(now.latest) < at-1e6 {
			t.Errorf("after %v, Now returned %v, %v after %d requests", stood, now, err, asked)
		}
	}
	// The response was sent before the suspension, and arrived after it.
	c.Learn(time.Now(), service(), time.Millisecond)
	c.ahead -= time.Hour
	if _, fresh := c.now(time.Now()); fresh {
		t.Error("a response from before the suspension is believed")
	}
}
