package storetest_test

import (
	"context"

	"github.com/effectively-once/once/internal/presence"
	"github.com/effectively-once/once/store"
)

var senderPlace = presence.PlaceOf("the sender")

// senderPresent is a presence with a bug.
type senderPresent struct {
	s  *sender
	id [16]byte
}

func (s *sender) AppearRelay(context.Context) (store.Present, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &senderPresent{s, senderPlace.NewID()}
	if s.has("relays share an ID") {
		p.id = [16]byte{1}
	}
	if s.present == nil || s.has("present alone") {
		s.present = make(map[[16]byte]bool)
	}
	s.present[p.id] = true
	return p, nil
}

func (p *senderPresent) ID() [16]byte { return p.id }

func (p *senderPresent) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, id := range others {
		if (senderPlace.Has(id) || p.s.has("strangers are missing")) && !p.s.present[id] {
			missing = append(missing, id)
		}
	}
	if p.s.has("looks after its context") {
		return missing, nil
	}
	return missing, ctx.Err()
}

func (p *senderPresent) Close() {
	if p.s.has("present for ever") {
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	delete(p.s.present, p.id)
}
