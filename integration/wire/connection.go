package wire

import (
	"bufio"
	"io"
	"net"
	"sync"
	"time"
)

// Protocol is what a proxy knows of the language between client and server.
type Protocol struct {
	begin func() conversation
}

// conversation cuts the two streams of one connection. Its methods are called by one goroutine each, and only when
// the other has seen what was said before.
type conversation interface {
	// request reads the next request of the client.
	request(client *bufio.Reader) (Request, error)
	// reply reads the next piece of what the server says; last: the oldest request without an answer has it now.
	reply(server *bufio.Reader) (piece []byte, last bool, err error)
}

// connection carries what one client and its server say to each other.
type connection struct {
	proxy          *Proxy
	client, server net.Conn
	talk           conversation
	over           chan struct{}
	closing        sync.Once

	mu      sync.Mutex
	waiting []*Rule // for each request whose answer is not complete, oldest first; nil: no rule
	silent  ending  // hangs or splits, once nothing arrives any more
}

func newConnection(p *Proxy, client, server net.Conn) *connection {
	return &connection{proxy: p, client: client, server: server, talk: p.protocol.begin(), over: make(chan struct{})}
}

// run carries until both directions have ended.
func (c *connection) run() {
	var both sync.WaitGroup
	both.Go(func() { c.ended(c.carryRequests(), true) })
	both.Go(func() { c.ended(c.carryReplies(), false) })
	both.Wait()
	if c.hush() == splits {
		<-c.over
	}
}

func (c *connection) close() {
	c.closing.Do(func() {
		close(c.over)
		_ = c.client.Close()
		_ = c.server.Close()
	})
}

// ended passes the end of one side on to the other, as far as the other may know of it.
func (c *connection) ended(_ error, client bool) {
	switch silent := c.hush(); {
	case silent == goesOn, silent == hangs && client:
		c.close()
	case client:
		_ = c.client.Close()
	}
}

func (c *connection) hush() ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.silent
}

func (c *connection) carryRequests() error {
	in := bufio.NewReader(c.client)
	for {
		req, err := c.talk.request(in)
		if err != nil {
			return err
		}
		if len(req.here) > 0 {
			if _, err := c.client.Write(req.here); err != nil {
				return err
			}
			continue
		}
		if c.hush() != goesOn {
			_, err := io.Copy(io.Discard, in)
			return err
		}
		if err := c.carry(req, c.proxy.judge(req)); err != nil {
			return err
		}
	}
}

// carry brings one request to the server, as far as its rule lets it.
func (c *connection) carry(req Request, rule *Rule) error {
	var action Action
	if rule != nil {
		action = rule.action
	}
	if !c.pause(action.delay) || action.drop {
		return c.end(rule)
	}
	if req.answered {
		c.await(rule)
	}
	if _, err := c.server.Write(req.raw); err != nil {
		return err
	}
	if action.reply != lost && rule != nil {
		return c.end(rule)
	}
	return nil
}

// pause reports whether the connection is still there when d has passed.
func (c *connection) pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.over:
		return false
	}
}

// end does to the connection what the rule says.
func (c *connection) end(rule *Rule) error {
	defer rule.carriedOut()
	switch then := rule.action.then; then {
	case closes:
		c.close()
		return net.ErrClosed
	case hangs, splits:
		c.mu.Lock()
		c.silent = then
		c.mu.Unlock()
	}
	return nil
}

func (c *connection) await(rule *Rule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, rule)
}

// answering is the rule for the request that the server is answering now.
func (c *connection) answering() *Rule {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return nil
	}
	return c.waiting[0]
}

func (c *connection) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) > 0 {
		c.waiting = c.waiting[1:]
	}
}

func (c *connection) carryReplies() error {
	in := bufio.NewReader(c.server)
	var held []byte
	for {
		piece, last, err := c.talk.reply(in)
		if err != nil {
			return err
		}
		rule := c.answering()
		if last {
			c.answered()
		}
		switch {
		case c.hush() != goesOn:
		case rule == nil || rule.action.reply == arrives:
			if _, err := c.client.Write(piece); err != nil {
				return err
			}
		default:
			held = append(held, piece...)
			if last {
				if err := c.lose(rule, held); err != nil {
					return err
				}
				held = nil
			}
		}
	}
}

// lose throws away what the server has answered, but for what the rule lets arrive.
func (c *connection) lose(rule *Rule, reply []byte) error {
	c.pause(rule.action.late)
	if rest := rule.action.rest(reply); len(rest) > 0 {
		if _, err := c.client.Write(rest); err != nil {
			return err
		}
	}
	return c.end(rule)
}
