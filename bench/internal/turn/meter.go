package turn

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Meter counts a turn of work that runs on its own, such as that of a consumer,
// which reports each completed unit. It excludes a lead time in which not all
// workers run yet, and counts from one completion to another.
type Meter struct {
	length time.Duration
	stop   func()

	mu        sync.Mutex
	told      time.Time // time of the first completion
	begun     time.Time
	over      bool
	tally     Tally
	latencies []time.Duration
}

// NewMeter returns a Meter that calls stop when the length is over.
func NewMeter(length time.Duration, stop func()) *Meter { return &Meter{length: length, stop: stop} }

// leadPart is the fraction of the length that is not counted.
const leadPart = 4

// Done reports completed units and their duration. It may be called
// concurrently.
func (m *Meter) Done(units int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	switch {
	case m.over:
		return
	case m.told.IsZero():
		m.told = now
		return
	case m.begun.IsZero():
		if now.Sub(m.told) >= m.length/leadPart {
			m.begun = now
		}
		return
	}
	m.tally.Units += units
	m.latencies = append(m.latencies, took)
	if length := now.Sub(m.begun); length >= m.length {
		m.over, m.tally.PerSecond = true, float64(m.tally.Units)/length.Seconds()
		m.stop()
	}
}

// Tally returns the counts, or an error if the turn did not end.
func (m *Meter) Tally() (Tally, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		return Tally{}, errors.New("the turn was broken off before its length was over: too little was done in it")
	}
	slices.Sort(m.latencies)
	m.tally.P50, m.tally.P99 = quantile(m.latencies, 50), quantile(m.latencies, 99)
	return m.tally, nil
}
