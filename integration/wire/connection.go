package wire

import (
	"bufio"
	"io"
	"net"
	"sync"
	"time"
)

// Protocol is the protocol between a client and a server.
type Protocol struct {
	begin func() conversation
}

// conversation splits the two streams of a connection. Each method is called by
// one goroutine. A reply is read only after its request was.
type conversation interface {
	// request reads the next request of the client.
	request(client *bufio.Reader) (Request, error)
	// reply reads the next part of an answer. Last reports that the answer to
	// the oldest open request is complete.
	reply(server *bufio.Reader) (piece []byte, last bool, err error)
}

// connection passes requests and replies between a client and its server.
type connection struct {
	proxy          *Proxy
	client, server net.Conn
	talk           conversation
	over           chan struct{}
	closing        sync.Once

	mu      sync.Mutex
	waiting []*Rule   // the rule, or nil, of each request whose answer is not complete, oldest first
	silent  connFault // hangs or splits when nothing arrives any more
}

func newConnection(p *Proxy, client, server net.Conn) *connection {
	return &connection{proxy: p, client: client, server: server, talk: p.protocol.begin(), over: make(chan struct{})}
}

// run passes data until both directions have ended.
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

// ended closes the other side when one side has ended, unless it must not know.
func (c *connection) ended(_ error, client bool) {
	switch silent := c.hush(); {
	case silent == goesOn, silent == hangs && client:
		c.close()
	case client:
		_ = c.client.Close()
	}
}

func (c *connection) hush() connFault {
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

// carry passes a request to the server, unless its rule says otherwise.
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

// pause waits for d, and reports whether the connection is still open.
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

// end applies the fault of a rule to the connection.
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

// answering returns the rule of the request that the server is answering.
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

// lose drops an answer, except the part that the rule lets arrive.
func (c *connection) lose(rule *Rule, reply []byte) error {
	c.pause(rule.action.late)
	if rest := rule.action.rest(reply); len(rest) > 0 {
		if _, err := c.client.Write(rest); err != nil {
			return err
		}
	}
	return c.end(rule)
}
