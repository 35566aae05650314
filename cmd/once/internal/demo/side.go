package demo

import (
	"context"
	"fmt"
	"time"
)

// side is everything that one handler works with, and nothing is shared with the other side but the schedule.
type side struct {
	name     string
	where    setup
	shop     *Shop // the demo's own look into the database
	provider *provider
	broker   *broker
}

func newSide(ctx context.Context, name, dir string, plan *schedule) (*side, error) {
	provider, err := newProvider()
	if err != nil {
		return nil, err
	}
	s := &side{name: name, provider: provider, broker: newBroker(plan.groups)}
	s.where = setup{Side: name, Database: dataSource(dir, name), Provider: provider.url}
	if s.shop, err = openShop(s.where); err == nil {
		err = s.shop.migrate(ctx, plan.orders)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("the database in %s cannot be set up: %w", dir, err)
	}
	return s, nil
}

func (s *side) close() {
	s.provider.close()
	if s.shop != nil {
		s.shop.db.Close()
	}
}

// work keeps one worker busy until all messages are acknowledged, and starts another when it is killed.
func (s *side) work(ctx context.Context, command []string) error {
	for {
		p, err := startProcess(ctx, command, s.where)
		if err != nil {
			return err
		}
		again, err := s.deliver(ctx, p)
		if !again || err != nil {
			return err
		}
	}
}

// deliver gives messages to a worker. It returns when the worker has ended; again says that it was killed on purpose.
func (s *side) deliver(ctx context.Context, p *process) (again bool, err error) {
	for {
		d := s.broker.next(ctx)
		if d == nil {
			return false, p.stop()
		}
		a, err := p.do(task{Order: d.order, DieAt: d.fates[0].dieAt})
		switch {
		case err != nil:
			p.kill()
			return false, err
		case a.At != "":
			p.kill()
			s.broker.crashed(d)
			return true, nil
		case a.Acked:
			s.broker.handled(d)
		case !a.Retry || d.refusals == maxRefusals:
			p.kill()
			return false, fmt.Errorf("%s was refused %d times: %s", d.order.ID, d.refusals+1, a.Refused)
		default:
			s.broker.refused(d, max(a.After, minPause))
		}
	}
}

const (
	maxRefusals = 20
	minPause    = 20 * time.Millisecond
)
