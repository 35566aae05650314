package fakeamqp

import (
	"bufio"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Server is the AMQP 1.0 listener. All broker state is guarded by mu.
type Server struct {
	mu     sync.Mutex
	ln     net.Listener
	ahead  time.Duration // of the clock of the machine: see Advance
	conns  map[*conn]bool
	queues map[string]*queue
	topics map[string][]string // topic -> subscription paths
	hubs   map[string]*hub
	stop   chan struct{}
	// OnTransfer, when set, is called for every message a client sends. Returning false kills the
	// connection; accept says whether the message is stored first (the "committed but answer lost" fault).
	OnTransfer func(address string) (store, answer bool)

	// OnDisposition is called for every settlement of a message of a queue, on its
	// link or over $management, with the outcome: "completed", "abandoned",
	// "dead-lettered", "deferred" or "released". apply says whether it takes effect,
	// and answer whether the client hears of it before its connection is cut.
	OnDisposition func(address, outcome string) (apply, answer bool)
}

// Advance moves the clock of the server, by which locks, scheduled messages and
// the window of duplicate detection end.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
	s.tick()
}

func (s *Server) now() time.Time { return time.Now().Add(s.ahead) }

func (s *Server) tick() {
	for _, q := range s.queues {
		q.tick(s.now())
	}
}

type conn struct {
	s    *Server
	c    net.Conn
	out  chan []byte
	sess map[uint16]*session
	rpc  map[string]*link // reply address -> our sending link

	frameSize int // the largest frame that the client takes
}
type session struct {
	c          *conn
	ch         uint16
	nextIn     uint32 // next-incoming-id
	nextOut    uint32
	remoteWin  uint32
	links      map[uint32]*link
	deliveries map[uint32]*delivery
	nextDel    uint32
}
type link struct {
	s       *session
	name    string
	handle  uint32
	send    bool // we send to the client
	addr    string
	settled bool // receive-and-delete
	credit  uint32
	count   uint32 // delivery-count
	q       *queue
	part    *partition
	pos     int64 // sequence number of the next event
	epoch   int64
	partial []byte
	first   []any // the fields of the first frame of a transfer that is not complete
	sessID  *string
	timeout time.Duration // how long an accept of the next session waits
}
type delivery struct {
	l     *link
	e     *entry
	token UUID // of the lock; the link may lock the message again
}

func Start() (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{ln: ln, conns: map[*conn]bool{}, queues: map[string]*queue{}, topics: map[string][]string{}, hubs: map[string]*hub{}, stop: make(chan struct{})}
	go s.accept(ln)
	go func() {
		t := time.NewTicker(20 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-t.C:
				s.mu.Lock()
				s.tick()
				s.mu.Unlock()
			}
		}
	}()
	return s, nil
}

// accept serves the connections of a listener until that is closed.
func (s *Server) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		k := &conn{s: s, c: c, out: make(chan []byte, 1024), sess: map[uint16]*session{}, rpc: map[string]*link{}, frameSize: 512}
		s.mu.Lock()
		s.conns[k] = true
		s.mu.Unlock()
		go k.serve()
	}
}

// Restart cuts all connections and listens again at the same address. Messages,
// delivery counts, locks of messages, session states and what duplicate detection
// has seen are kept. Locks of sessions end with their links.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := s.ln.Addr().String()
	s.ln.Close()
	s.drop()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s.ln = ln
	go s.accept(ln)
	return nil
}

func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ln.Addr().String()
}
func (s *Server) ConnectionString() string {
	return "Endpoint=sb://" + s.Addr() + ";SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
}

// DropConnections cuts every client connection (network fault).
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop ends what the connections hold at once, as if their clients were gone, and
// not when their readers notice.
func (s *Server) drop() {
	for c := range s.conns {
		c.end()
	}
}

// end closes a connection and what it holds. The mutex is held.
func (c *conn) end() {
	c.c.Close()
	delete(c.s.conns, c)
	for ch, x := range c.sess {
		x.end()
		delete(c.sess, ch)
	}
}

func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ln.Close()
	close(s.stop)
	s.drop()
}

func (c *conn) frame(ch uint16, typ byte, code uint64, fields []any, payload []byte) {
	b := make([]byte, 8, 64+len(payload))
	b[4], b[5] = 2, typ
	be.PutUint16(b[6:], ch)
	b = append(enc(b, Desc{Code: code, V: fields}), payload...)
	be.PutUint32(b, uint32(len(b)))
	c.write(b)
}
func (c *conn) write(b []byte) {
	select {
	case c.out <- b:
	case <-time.After(5 * time.Second):
		c.c.Close()
	}
}

func (c *conn) serve() {
	done := make(chan struct{})
	defer func() {
		recover() // malformed input or closed socket: drop this client
		close(done)
		c.s.mu.Lock()
		c.end()
		c.s.mu.Unlock()
	}()
	go func() {
		keep := time.NewTicker(10 * time.Second)
		defer keep.Stop()
		for {
			var b []byte
			select {
			case b = <-c.out:
			case <-keep.C:
				b = []byte{0, 0, 0, 8, 2, 0, 0, 0} // heartbeat
			case <-done:
				return
			}
			if b == nil { // after the last frame
				c.c.Close()
				continue
			}
			if _, err := c.c.Write(b); err != nil {
				c.c.Close()
			}
		}
	}()
	r := bufio.NewReaderSize(c.c, 1<<16)
	for {
		h := make([]byte, 8)
		if _, err := io.ReadFull(r, h); err != nil {
			return
		}
		if string(h[:4]) == "AMQP" {
			c.write(append([]byte{}, h...)) // agree to SASL (3) or AMQP (0)
			if h[4] == 3 {
				c.frame(0, 1, 0x40, []any{[]Sym{"ANONYMOUS", "PLAIN", "MSSBCBS"}}, nil)
			}
			continue
		}
		body := make([]byte, be.Uint32(h)-8)
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		if len(body) == 0 {
			continue
		}
		d := &dec{body[int(h[4])*4-8:]}
		p := d.val().(Desc)
		f, _ := p.V.([]any)
		for len(f) < 14 {
			f = append(f, nil)
		}
		if h[5] == 1 {
			c.frame(0, 1, 0x44, []any{uint8(0)}, nil)
			continue
		}
		if !c.take(be.Uint16(h[6:]), p.Code, f, d.b) {
			return
		}
	}
}

// take handles a frame. It unlocks also if the frame is malformed.
func (c *conn) take(ch uint16, code uint64, f []any, payload []byte) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.s.conns[c] && c.handle(ch, code, f, payload)
}

// handle handles a frame, and reports whether the connection goes on.
func (c *conn) handle(ch uint16, code uint64, f []any, payload []byte) bool {
	s := c.sess[ch]
	switch code {
	case 0x10: // open
		if n, ok := f[2].(uint32); ok {
			c.frameSize = int(min(n, 1<<20))
		}
		c.frame(0, 0, 0x10, []any{"fakeamqp", nil, uint32(1 << 20), uint16(65535), uint32(60000)}, nil)
	case 0x11: // begin
		s = &session{c: c, ch: ch, nextIn: f[1].(uint32), remoteWin: f[2].(uint32), links: map[uint32]*link{}, deliveries: map[uint32]*delivery{}}
		c.sess[ch] = s
		c.frame(ch, 0, 0x11, []any{ch, uint32(0), uint32(1 << 30), uint32(1 << 30), uint32(1 << 16)}, nil)
	case 0x12:
		s.attach(f)
	case 0x13: // flow
		if n, ok := f[0].(uint32); ok {
			s.remoteWin = n + f[1].(uint32) - s.nextOut
		} else {
			s.remoteWin = f[1].(uint32)
		}
		if h, ok := f[4].(uint32); ok {
			if l := s.links[h]; l != nil && l.send {
				dc, _ := f[5].(uint32)
				lc, _ := f[6].(uint32)
				l.credit = dc + lc - l.count
				l.pump()
				if drain, _ := f[8].(bool); drain {
					l.count += l.credit
					l.credit = 0
					s.flow(l, true)
				}
			}
		}
		if echo, _ := f[9].(bool); echo {
			s.flow(nil, false)
		}
		for _, l := range s.links {
			l.pump()
		}
	case 0x14:
		return s.transfer(f, payload)
	case 0x15:
		if role, _ := f[0].(bool); role {
			return s.disposition(f)
		}
	case 0x16: // detach
		h := f[0].(uint32)
		if l := s.links[h]; l != nil {
			l.close()
			c.frame(ch, 0, 0x16, []any{h, true}, nil)
		}
	case 0x17:
		if s != nil {
			s.end()
			delete(c.sess, ch)
			c.frame(ch, 0, 0x17, []any{nil}, nil)
		}
	case 0x18:
		c.frame(0, 0, 0x18, []any{nil}, nil)
		c.write(nil)
	}
	return true
}

func (s *session) end() {
	for _, l := range s.links {
		l.close()
	}
}
func (s *session) flow(l *link, drain bool) {
	f := []any{s.nextIn, uint32(1 << 30), s.nextOut, uint32(1 << 30)}
	if l != nil {
		f = append(f, l.handle, l.count, l.credit, nil, drain)
	}
	s.c.frame(s.ch, 0, 0x13, f, nil)
}
func amqpErr(cond, desc string) Desc { return Desc{Code: 0x1d, V: []any{Sym(cond), desc}} }

func (s *session) attach(f []any) {
	l := &link{s: s, name: f[0].(string), handle: f[1].(uint32), send: f[2].(bool)}
	source, target, props := f[5], f[6], Map(nil)
	addrOf := func(v any) string {
		if d, ok := v.(Desc); ok {
			if x, ok := d.V.([]any); ok && len(x) > 0 {
				a, _ := x[0].(string)
				return a
			}
		}
		return ""
	}
	term := addrOf(target)
	if l.send {
		term = addrOf(source)
		if rm, ok := f[3].(uint8); ok && rm == 1 {
			l.settled = true // sender-settle-mode settled: receive and delete
		}
	}
	l.addr = strings.TrimPrefix(term, "/")
	srv, fail := s.c.s, Desc{}
	switch {
	case l.addr == "$cbs" || l.addr == "$management" || strings.HasSuffix(l.addr, "/$management"):
		if l.send {
			l.settled = true
			s.c.rpc[addrOf(target)] = l
		}
	case strings.Contains(l.addr, "/Partitions/") || srv.hubs[l.addr] != nil:
		fail = s.attachHub(l, source, f[13])
	case srv.queues[l.addr] != nil:
		l.q = srv.queues[l.addr]
		if l.send {
			l.timeout = acceptTimeout
			if m, ok := f[13].(Map); ok {
				if ms, ok := m.Get("com.microsoft:timeout").(uint32); ok {
					l.timeout = time.Duration(ms) * time.Millisecond
				}
			}
			s.links[l.handle] = l // also while it waits for a session
			l.q.attach(l, source.(Desc), func(source any, props Map, fail Desc) { s.attached(l, f, source, target, props, fail) })
			return
		}
	case !l.send && srv.topics[l.addr] != nil:
	default:
		fail = amqpErr("amqp:not-found", "The messaging entity '"+l.addr+"' could not be found.")
	}
	s.attached(l, f, source, target, props, fail)
}

// attached answers the attach f.
func (s *session) attached(l *link, f []any, source, target any, props Map, fail Desc) {
	if fail.Code != 0 {
		source, target = nil, nil
	}
	var idc any
	if l.send {
		idc = uint32(0)
	}
	s.c.frame(s.ch, 0, 0x12, []any{l.name, l.handle, !l.send, f[3], f[4], source, target, nil, nil, idc, uint64(maxMessage), nil, nil, props}, nil)
	if fail.Code != 0 {
		delete(s.links, l.handle)
		s.c.frame(s.ch, 0, 0x16, []any{l.handle, true, fail}, nil)
		return
	}
	s.links[l.handle] = l
	if !l.send {
		l.count, _ = f[9].(uint32)
		l.credit = 1000
		s.flow(l, false)
	}
}

func (l *link) close() {
	if l.s.links[l.handle] == l { // the client may have used the handle again
		delete(l.s.links, l.handle)
	}
	if l.q != nil && l.send {
		l.q.detach(l)
	}
	if l.part != nil {
		delete(l.part.readers, l)
	}
}
func (l *link) detach(e Desc) {
	l.close()
	l.s.c.frame(l.s.ch, 0, 0x16, []any{l.handle, true, e}, nil)
}
func (l *link) pump() {
	if l.q != nil && l.send {
		l.q.pump()
	}
	if l.part != nil {
		l.part.pump()
	}
}
func (l *link) canSend() bool { return l.credit > 0 && l.s.remoteWin > 0 }

// deliver sends one transfer to the client.
func (l *link) deliver(tag, payload []byte, e *entry) {
	s := l.s
	id := s.nextDel
	s.nextDel++
	if !l.settled {
		d := &delivery{l: l, e: e}
		if e != nil {
			d.token = e.token
		}
		s.deliveries[id] = d
	}
	l.credit--
	l.count++
	for most := s.c.frameSize - frameSpare; ; {
		n := min(len(payload), most)
		more := n < len(payload)
		s.nextOut++
		s.remoteWin--
		s.c.frame(s.ch, 0, 0x14, []any{l.handle, id, tag, uint32(0), l.settled, more}, payload[:n])
		if payload = payload[n:]; !more {
			return
		}
	}
}

const (
	batchFormat = 0x80013700
	maxMessage  = 4 << 20 // what a premium namespace can be set to, and no less than tests send
	frameSpare  = 128     // bytes of a transfer before its payload

	// acceptTimeout is how long an accept of the next session waits, if the client
	// does not say.
	acceptTimeout = time.Minute
)

func (s *session) transfer(f []any, payload []byte) bool {
	s.nextIn++
	l := s.links[f[0].(uint32)]
	if l == nil {
		return true
	}
	if l.first == nil {
		l.first = f
	}
	l.partial = append(l.partial, payload...)
	if more, _ := f[5].(bool); more {
		return true
	}
	raw := l.partial
	f = l.first // the other frames need not say what the first has said
	l.partial, l.first = nil, nil
	l.count++
	if l.credit--; l.credit < 500 {
		l.credit = 1000
		s.flow(l, false)
	}
	store, answer, srv := true, true, s.c.s
	isRPC := strings.HasSuffix(l.addr, "$cbs") || strings.HasSuffix(l.addr, "$management")
	if srv.OnTransfer != nil && !isRPC {
		store, answer = srv.OnTransfer(l.addr)
	}
	state := any(Desc{Code: 0x24, V: []any{}})
	if store {
		m := parseMessage(raw)
		ms := []*message{m}
		if mf, _ := f[3].(uint32); mf == batchFormat {
			ms = nil
			for _, d := range m.Data {
				ms = append(ms, parseMessage(d))
			}
		}
		switch {
		case isRPC:
			return s.reply(l.addr, m, f)
		case strings.Contains(l.addr, "/Partitions/") || srv.hubs[l.addr] != nil:
			srv.publish(l.addr, m, ms)
		default:
			if fail := srv.send(l.addr, m, ms); fail.Code != 0 {
				state = Desc{Code: 0x25, V: []any{fail}}
			}
		}
	}
	if !answer {
		return false
	}
	if settled, _ := f[4].(bool); !settled {
		s.c.frame(s.ch, 0, 0x15, []any{true, f[1], f[1], true, state}, nil)
	}
	return true
}

// reply answers a $cbs or $management request, which the transfer f carried. It
// reports whether the connection goes on.
func (s *session) reply(addr string, m *message, f []any) bool {
	code, desc, val := int32(200), "OK", any(nil)
	if !strings.HasSuffix(addr, "$cbs") {
		var answer bool
		if code, desc, val, answer = s.manage(strings.TrimSuffix(addr, "/$management"), m); !answer {
			return false
		}
	}
	if settled, _ := f[4].(bool); !settled {
		s.c.frame(s.ch, 0, 0x15, []any{true, f[1], f[1], true, Desc{Code: 0x24, V: []any{}}}, nil)
	}
	to, _ := m.prop(4).(string)
	l := s.c.rpc[to]
	if l == nil {
		return true
	}
	b := enc(nil, Desc{Code: 0x73, V: []any{nil, nil, nil, nil, nil, m.prop(0)}})
	b = enc(b, Desc{Code: 0x74, V: Map{{"status-code", code}, {"statusCode", code}, {"status-description", desc}}})
	b = enc(b, Desc{Code: 0x77, V: val})
	l.deliver([]byte{1}, b, nil)
	return true
}

// disposition settles deliveries, and reports whether the connection goes on.
func (s *session) disposition(f []any) bool {
	first := f[1].(uint32)
	last, ok := f[2].(uint32)
	if !ok {
		last = first
	}
	st, _ := f[4].(Desc)
	for id := first; id <= last; id++ {
		d := s.deliveries[id]
		if d == nil {
			continue
		}
		delete(s.deliveries, id)
		res, answer := any(st), true
		if st.Code == 0x25 { // the answer has the error only if the dead-lettering failed
			res = Desc{Code: 0x25, V: []any{}}
		}
		if d.e != nil && d.l.q != nil {
			var ok bool
			if ok, answer = d.l.q.settle(d.e, d.l, d.token, st); !ok {
				res = Desc{Code: 0x25, V: []any{amqpErr(d.l.q.lost(), "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue.")}}
			}
		}
		if !answer {
			return false
		}
		if settled, _ := f[3].(bool); !settled {
			s.c.frame(s.ch, 0, 0x15, []any{false, id, id, true, res}, nil)
		}
	}
	return true
}
